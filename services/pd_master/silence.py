"""How long a peer has said nothing, in seconds of an event loop that runs.

A burst of work can hold the loop up for seconds, in which what the peer says waits unread. By the clock alone it would
then count as silent, and every worker at once.
"""

import asyncio
from types import TracebackType

_TICKS = 8
"""Parts of the patience; a part in which the loop stood still counts once, however long it took."""


class SilenceWatch:
    """Entered by the task that listens; raises TimeoutError there when `heard` was not called for `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._tick_s = patience_s / _TICKS
        self._num_quiet = 0
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def quiet_s(self) -> float:
        """How long nothing has been heard."""
        return self._num_quiet * self._tick_s

    def heard(self) -> None:
        """The peer said something."""
        self._num_quiet = 0

    async def __aenter__(self) -> "SilenceWatch":
        await self._timeout.__aenter__()
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        self._num_quiet += 1
        if self._num_quiet < _TICKS:
            self._arm()
        else:
            self._timeout.reschedule(asyncio.get_running_loop().time())
