"""One timer of the event loop that follows the earliest time at which something is due."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Rings no later than asked; it may ring early, after the time asked was put off. Made on the event loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._due_s = 0.0
        """When it rings; kept here, since uvloop's handle of a time that has passed cannot tell."""

    def set(self, due_s: float | None) -> None:
        """Ring at `due_s` of the loop's clock; None: not at all."""
        if self._handle is not None:
            if due_s is not None and self._due_s <= due_s:
                return  # too early does no harm, and setting a timer for each message does
            self._handle.cancel()
            self._handle = None
        if due_s is not None:
            self._due_s = due_s
            self._handle = self._loop.call_at(due_s, self._rung)

    def _rung(self) -> None:
        self._handle = None
        self._ring()
