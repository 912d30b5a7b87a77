"""One way to define, read and print options: frozen dataclasses whose fields carry their help, bounds and group.

A field `max_running_requests` is the flag `--max-running-requests` and the variable `SLUICE_MAX_RUNNING_REQUESTS`; a
flag wins over a variable, a variable over the default. Everything is read once, whole and before anything starts: an
unknown key or a value that cannot be is a ConfigError that names the key and what is allowed.

    @dataclass(frozen=True, kw_only=True)
    class Ports(Options):
        http_port: int = option(8000, "where HTTP is served", group="network", minimum=0, maximum=65535)

    read(Ports, ["--http-port", "80"], os.environ)

Field types are str, int, float, bool, Literal[...], tuple[str, ...] (comma-separated), and each of them with `| None`.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from services.common.names_elsewhere import NAMES_ELSEWHERE

EXIT_USAGE = 2
"""Exit status of a process whose configuration cannot be."""
ENV_PREFIX = "SLUICE_"
ENV_OF_NO_OPTION = frozenset({"SLUICE_CACHE"})
"""Variables that are read before or beside any option."""

_TRUE = frozenset({"true", "on", "yes", "1"})
_FALSE = frozenset({"false", "off", "no", "0"})
_KIND = {int: "a whole number", float: "a number", bool: "true or false"}


class ConfigError(Exception):
    """The configuration is wrong; the message names the key and what is allowed. Fatal at start."""


def reason_of(error: Exception) -> str:
    """Why a file cannot be used, without its path and error number, which a message has elsewhere."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class HelpRequested(Exception):  # noqa: N818 - it is no error
    """`--help` or `-h` stood among the arguments."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What is known of one option."""

    name: str
    type: Any
    """The bare type, without `| None`."""
    choices: tuple[str, ...]
    default: Any
    """`dataclasses.MISSING` when the option must be given."""
    help: str
    group: str
    metavar: str
    minimum: float | None
    maximum: float | None

    @property
    def flag(self) -> str:
        """The flag: `--max-running-requests`."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The environment variable: `SLUICE_MAX_RUNNING_REQUESTS`."""
        return ENV_PREFIX + self.name.upper()

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kind = _KIND.get(self.type, "text")
        if self.minimum is not None and self.maximum is not None:
            return f"{kind} from {self.minimum:g} to {self.maximum:g}"
        return f"{kind} of at least {self.minimum:g}" if self.minimum is not None else kind


def option(
    default: Any = dataclasses.MISSING,  # noqa: ANN401 - a field of any type
    help: str = "",  # noqa: A002 - the word every option parser uses
    *,
    group: str,
    metavar: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:  # noqa: ANN401 - stands where a field of any type is declared
    """Declare a field of an Options dataclass; without a default the option must be given."""
    metadata = {"help": help, "group": group, "metavar": metavar, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Base of every configuration: checks bounds and choices however it was made. Raises ConfigError."""

    def __post_init__(self) -> None:
        for spec in specs(type(self)):
            _check_bounds(spec, getattr(self, spec.name))
        self.check()

    def check(self) -> None:
        """Check what concerns several fields; overridden, raises ConfigError."""


T = TypeVar("T", bound=Options)


def specs(cls: type[Options]) -> list[Spec]:
    """Return the options of a configuration in the order they were declared."""
    hints = typing.get_type_hints(cls)
    return [_spec(field, hints[field.name]) for field in dataclasses.fields(cls)]


def read(cls: type[T], argv: Sequence[str], env: Mapping[str, str], *, also_known: Iterable[str] = ()) -> T:
    """Read a configuration from flags and the environment.

    `also_known` are variables that mean something to another command, so that one environment can serve several. Raises
    ConfigError, and HelpRequested when the arguments ask for help.
    """
    found = specs(cls)
    values = _from_env(found, env, also_known)
    values.update(_from_flags(found, argv))
    for spec in found:
        if spec.default is dataclasses.MISSING and spec.name not in values:
            raise ConfigError(f"{spec.flag} (or {spec.env}) must be given: {spec.help}")
    return cls(**values)


def as_flags(config: Options) -> list[str]:
    """Return the flags that `read` turns back into this configuration; defaults are left out."""
    flags: list[str] = []
    for spec in specs(type(config)):
        value = getattr(config, spec.name)
        if value is None or value == spec.default:
            continue
        if spec.type is bool:
            flags.append(spec.flag if value else _negated(spec))
        else:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            flags.append(f"{spec.flag}={text}")
    return flags


def _spec(field: "dataclasses.Field[Any]", hint: Any) -> Spec:  # noqa: ANN401 - a type expression
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is typing.Literal:
        choices, hint = typing.get_args(hint), str
    bare = tuple if typing.get_origin(hint) is tuple else hint
    return Spec(name=field.name, type=bare, choices=choices, default=field.default, **field.metadata)


def _check_bounds(spec: Spec, value: Any) -> None:  # noqa: ANN401 - a value of any option
    if value is None:
        return
    # "not >=" and not "<": a NaN is on neither side.
    wrong = (
        (spec.choices and value not in spec.choices)
        or (spec.minimum is not None and not value >= spec.minimum)
        or (spec.maximum is not None and not value <= spec.maximum)
    )
    if wrong:
        raise ConfigError(f"{spec.flag} ({spec.env}): {value!r} is not allowed; it takes {spec.allowed}")


def _from_env(found: list[Spec], env: Mapping[str, str], also_known: Iterable[str]) -> dict[str, Any]:
    by_env = {spec.env: spec for spec in found}
    known = by_env.keys() | set(also_known) | ENV_OF_NO_OPTION
    for name in env:
        if name.startswith(ENV_PREFIX) and name not in known:
            bare = {one.removeprefix(ENV_PREFIX): one for one in known}
            raise ConfigError(f"unknown environment variable {name}{_nearest(name.removeprefix(ENV_PREFIX), bare)}")
    return {spec.name: _parse(spec, env[name], name) for name, spec in by_env.items() if name in env}


def _from_flags(found: list[Spec], argv: Sequence[str]) -> dict[str, Any]:
    by_flag = {spec.flag: spec for spec in found}
    by_negation = {_negated(spec): spec for spec in found if spec.type is bool}
    values: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word, has_value, text = rest.pop(0).partition("=")
        if word in ("--help", "-h"):
            raise HelpRequested
        if word in by_negation and not has_value:
            values[by_negation[word].name] = False
            continue
        if word in by_negation:
            raise ConfigError(f"{word} takes no value; {by_negation[word].flag} takes {by_negation[word].allowed}")
        spec = by_flag.get(word)
        if spec is None:
            raise ConfigError(_unknown_flag(word, by_flag, by_negation))
        values[spec.name] = _flag_value(spec, text if has_value else None, rest)
    return values


def _flag_value(spec: Spec, text: str | None, rest: list[str]) -> Any:  # noqa: ANN401 - a value of any option
    if text is None and spec.type is bool:
        return True
    if text is None:
        if not rest:
            raise ConfigError(f"{spec.flag} needs a value; it takes {spec.allowed}")
        text = rest.pop(0)
    return _parse(spec, text, spec.flag)


def _parse(spec: Spec, text: str, key: str) -> Any:  # noqa: ANN401 - a value of any option
    if spec.type is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if spec.type is bool and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    try:
        if spec.type in (int, float):
            return spec.type(text)
    except ValueError:
        pass
    else:
        if spec.type is str:
            return text
    raise ConfigError(f"{key}: {text!r} is not allowed; it takes {spec.allowed}")


def _negated(spec: Spec) -> str:
    return "--no-" + spec.flag.removeprefix("--")


def _unknown_flag(word: str, by_flag: Mapping[str, Spec], by_negation: Mapping[str, Spec]) -> str:
    if not word.startswith("-"):
        given_by = "; a model is given by --model" if "--model" in by_flag else ""
        return f"{word!r} is no option: options begin with --{given_by}"
    flags = {**by_flag, **by_negation}
    ours = NAMES_ELSEWHERE.get(word, "")
    if ours in flags:
        return f"unknown option {word}; here it is {ours}"
    bare = word.lstrip("-").replace("_", "-")
    return f"unknown option {word}{_nearest(bare, {flag.lstrip('-'): flag for flag in flags})}"


def _nearest(name: str, known: Mapping[str, str]) -> str:
    """A guess at what was meant. `known`: names without what all begin with, which would be alike in any two."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {known[near[0]]}?" if near else ""
