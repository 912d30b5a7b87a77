"""The server's end of a stream between pods: a hello with a deadline, then reading and writing side by side."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from services.common.messages import PROTOCOL
from services.worker.outbox import Outbox
from services.worker.session_errors import LeavingError, ProtocolMismatchError

HELLO_TIMEOUT_S = 5.0
In = TypeVar("In")
Out = TypeVar("Out")
Hello = TypeVar("Hello")


async def read_hello(incoming: AsyncIterator[In], kind: type[Hello]) -> Hello:
    """The first message. Raises ProtocolMismatchError when it is no hello, comes late, or speaks another protocol."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            first = await anext(incoming)
    except TimeoutError:
        raise ProtocolMismatchError(f"no hello within {HELLO_TIMEOUT_S:.0f} s") from None
    except StopAsyncIteration:
        raise ProtocolMismatchError("the other side left before its hello") from None
    if not isinstance(first, kind):
        raise ProtocolMismatchError(f"the first message must be {kind.__name__}, not {type(first).__name__}")
    theirs: int = getattr(first, "protocol", 0)
    if theirs != PROTOCOL:
        raise ProtocolMismatchError(f"this worker speaks session protocol {PROTOCOL}, the other side {theirs}")
    return first


async def converse(
    incoming: AsyncIterator[In], outbox: Outbox[Out], receive: Callable[[In], None]
) -> AsyncGenerator[list[Out]]:
    """Give what is to be written at a time while handing over what comes, until either side ends; raises why."""
    reader = asyncio.create_task(_read(incoming, outbox, receive))
    try:
        async with aclosing(outbox.batches()) as batches:
            async for batch in batches:
                yield batch
        if reader.done():
            reader.result()
        assert outbox.end is not None
        raise outbox.end
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(incoming: AsyncIterator[In], outbox: Outbox[Out], receive: Callable[[In], None]) -> None:
    try:
        async for message in incoming:
            if outbox.end is not None:
                return
            receive(message)
    finally:
        outbox.close(LeavingError("the other side ended the stream"))
