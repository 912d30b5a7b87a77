"""API keys: who may use the gateway, and under which name their requests are logged.

Keys are kept and compared as SHA-256 digests: the time of a look-up tells nothing of a key that is not known already.
"""

import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from services.common.errors import SluiceError
from services.common.options import ConfigError, reason_of
from services.pd_master.allowance import Limits

current_key: ContextVar[str] = ContextVar("current_key", default="")
"""Name of the key that the request in work came with; empty where no keys are needed."""

MIN_KEY_LENGTH = 16
_LIMITS = ("requests_per_minute", "tokens_per_minute")


class UnauthenticatedError(SluiceError):
    """No key, or one that is not known."""

    code = "invalid_api_key"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class ApiKeys:
    """The keys of one file, read once at the start."""

    def __init__(self, keys: dict[str, str], limits: dict[str, Limits] | None = None) -> None:
        """`keys`: name -> key; `limits`: of those names that have some."""
        self._names = {_digest(key): name for name, key in keys.items()}
        self.limits = limits or {}

    def divided(self, num_processes: int) -> dict[str, Limits]:
        """What one of several processes lets each key have, which counts for itself: its share, rounded up."""
        return {name: one.divided(num_processes) for name, one in self.limits.items()}

    @classmethod
    def load(cls, path: Path) -> "ApiKeys":
        """Lines of `NAME KEY [requests_per_minute=N] [tokens_per_minute=N]`; empty ones and those that begin with `#`
        are skipped. Raises ConfigError."""
        keys: dict[str, str] = {}
        limits: dict[str, Limits] = {}
        for number, words in _lines(path):
            where = f"--api-keys-file: {path} line {number}"
            if len(words) < 2 or len(words[1]) < MIN_KEY_LENGTH or words[0] in keys:
                problem = f"must be `NAME KEY`: a name of its own, a key of {MIN_KEY_LENGTH} characters or more"
                raise ConfigError(f"{where} {problem}")
            keys[words[0]] = words[1]
            limits[words[0]] = _limits(words[2:], where)
        if not keys:
            raise ConfigError(f"--api-keys-file: {path} holds no key")
        return cls(keys, limits)

    def admit(self, authorization: str, api_key: str) -> None:
        """Take the values of the two headers that clients send a key in. Raises UnauthenticatedError."""
        scheme, _, bearer = authorization.partition(" ")
        key = api_key or (bearer.strip() if scheme.lower() == "bearer" else "")
        name = self._names.get(_digest(key)) if key else None
        if name is None:
            problem = "this API key is not known" if key else "an API key is needed: Authorization: Bearer KEY"
            raise UnauthenticatedError(problem)
        current_key.set(name)


def first_key(path: Path) -> str:
    """One of the keys of a file that `ApiKeys.load` takes: for whoever started the gateway with it."""
    _, (_, key, *_) = next(_lines(path))
    return key


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that say something: their number and words."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-keys-file: {path} cannot be read: {reason_of(error)}") from error
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _limits(words: list[str], where: str) -> Limits:
    found: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _LIMITS or name in found or not value.isdecimal() or int(value) < 1:
            allowed = " or ".join(f"{limit}=N" for limit in _LIMITS)
            raise ConfigError(f"{where}: {word!r} is not allowed; a limit is {allowed}, once")
        found[name] = int(value)
    return Limits(**found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
