"""Server-sent events: one loop for all APIs, from batches of deltas to writes.

The status line waits for the first batch, so that an overload or a lost worker before it is a status and not an event.
One batch becomes one write, however many choices and tokens it holds.
"""

import logging
from collections.abc import AsyncIterable
from typing import Protocol, TypeVar

from services.common.errors import SluiceError
from services.pd_master.api.http import HttpCall

log = logging.getLogger(__name__)

B = TypeVar("B")


class EventEncoder(Protocol[B]):
    """Turns one request's deltas into one API's events."""

    def start(self) -> bytes:
        """Events before all others."""
        ...

    def batch(self, deltas: list[B]) -> bytes:
        """Events of one batch; empty when it shows nothing."""
        ...

    def end(self) -> bytes:
        """Events after all choices have finished."""
        ...

    def error(self, error: SluiceError) -> bytes:
        """The events that end a stream which failed."""
        ...


async def stream_events(call: HttpCall, batches: AsyncIterable[list[B]], encoder: EventEncoder[B]) -> None:
    """Answer a call with a stream. Raises SluiceError only while nothing has been sent yet."""
    try:
        async for deltas in batches:
            if not call.started:
                await call.start_events()
                events = encoder.start() + encoder.batch(deltas)
            else:
                events = encoder.batch(deltas)
            if events:
                await call.write(events)
    except SluiceError as error:
        if not call.started:
            raise
        log.warning("stream failed after its start: %s", error.message)
        await call.end(encoder.error(error))
        return
    if not call.started:
        await call.start_events()
        await call.write(encoder.start())
    await call.end(encoder.end())
