"""Server-sent events: one loop for all APIs, from batches of deltas to writes.

The status line waits for the first batch, so that an overload or a lost worker before it is a status and not an event.
One batch becomes one write, however many choices and tokens it holds.
"""

from collections.abc import AsyncIterable, Callable
from typing import Protocol

from services.common.errors import SluiceError
from services.common.request import Delta
from services.pd_master.api.http import HttpCall
from services.pd_master.backend import Listener


class EventEncoder(Protocol):
    """Turns one request's deltas into one API's events."""

    def start(self) -> bytes:
        """Events before all others."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """Events of new output; empty when it shows nothing."""
        ...

    def end(self) -> bytes:
        """Events after all choices have finished."""
        ...

    def error(self, error: SluiceError) -> bytes:
        """The events that end a stream which failed."""
        ...


class _Direct:
    """Writes output where it comes in: from the worker's frame to the client's socket without a switch of tasks, which
    would cost as much as all else that a token costs here."""

    def __init__(self, call: HttpCall, encoder: EventEncoder) -> None:
        self._call = call
        self._encoder = encoder
        self.error: Exception | None = None
        """What went wrong in here; the handler's task raises it."""

    def __call__(self, delta: Delta) -> bool:
        if self._call.is_full or self.error is not None:
            return False
        try:
            events = self._encoder.delta(delta)
        except Exception as error:  # noqa: BLE001 - the caller serves all requests; this one's handler gets it
            self.error = error
            return False
        if events:
            self._call.write_now(events)
        return True


async def stream_events(
    call: HttpCall,
    batches: AsyncIterable[list[Delta]],
    encoder: EventEncoder,
    listen: Callable[[Listener], None] | None = None,
) -> None:
    """Answer a call with a stream. Raises SluiceError only while nothing has been sent yet.

    `listen` is the batches' own, where they are of one request: see `Generation.listen`.
    """
    direct = _Direct(call, encoder)
    try:
        async for deltas in batches:
            if direct.error is not None:
                raise direct.error
            if call.started:
                events = _joined(encoder, deltas)
            else:
                await call.start_events()
                events = encoder.start() + _joined(encoder, deltas)
                if listen is not None:
                    listen(direct)
            if events:
                await call.write(events)
    except SluiceError as error:
        if not call.started:
            raise
        await call.end(encoder.error(error))
        return
    if not call.started:
        await call.start_events()
        await call.write(encoder.start())
    await call.end(encoder.end())


def _joined(encoder: EventEncoder, deltas: list[Delta]) -> bytes:
    return b"".join([encoder.delta(delta) for delta in deltas])
