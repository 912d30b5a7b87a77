"""What the log says of an address that gives no session: each reason once, until there is one."""

import logging
import time
from collections.abc import Callable

import grpc
import grpc.aio

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""A worker that loads its model does not listen yet, which is no news for so long."""


class Unreached:
    """Of one link, which tells it of each try that failed and of each session."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._since: float | None = None
        self._told: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Nobody answered, or somebody who will not talk with us."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        is_absent = _is_absent(error)
        reason = "nobody listens there" if is_absent else _words(error)
        log.debug("session to %s: %s", self._address, reason)
        if reason not in self._told and not (is_absent and now - self._since < PATIENCE_S):
            self._told.add(reason)
            log.warning("no session to the worker at %s: %s; it is tried again and again", self._address, reason)

    def reached(self) -> None:
        """There is a session."""
        self._since = None
        self._told.clear()


def _is_absent(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and "Connection refused" in (error.details() or "")


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or "no answer"
