"""The client's end of a stream between pods: what its outbox has is written beside the reading.

The writing is a task of our own: one that gRPC makes from an iterator outlives a call that broke before it was under
way, and is found by the garbage collector, which complains in the log.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

import grpc.aio

from services.common.errors import SluiceError
from services.worker.outbox import Outbox
from services.worker.session_errors import UnwritableError

log = logging.getLogger(__name__)

Out = TypeVar("Out")
ToProtos: TypeAlias = Callable[[list[Out]], Iterable[object]]
"""Turns what is said at once into what is written."""


@asynccontextmanager
async def written(call: Any, outbox: Outbox[Out], to_protos: ToProtos[Out]) -> AsyncGenerator[None]:  # noqa: ANN401 - the stubs' types are not those of calls
    """Within the context the outbox is written; behind it the call is over. Raises what ended the writing for a reason
    of our own: SessionOverflowError, or UnwritableError, which is logged as the program's own fault."""
    writer = asyncio.create_task(_write(call, outbox, to_protos))
    writer.add_done_callback(lambda task: call.cancel() if _problem(task) else None)
    try:
        yield
    except asyncio.CancelledError:  # what a reader meets when the call is cancelled
        current, problem = asyncio.current_task(), _problem(writer)
        if problem is None or (current is not None and current.cancelling()):
            raise
        raise problem from None
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        call.cancel()


async def _write(call: Any, outbox: Outbox[Out], to_protos: ToProtos[Out]) -> None:  # noqa: ANN401
    async with aclosing(outbox.batches()) as batches:
        async for batch in batches:
            try:
                for proto in to_protos(batch):
                    await call.write(proto)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the call is over: the reader hears why
            except Exception as error:
                log.exception("what is said on a session cannot be written")
                raise UnwritableError(f"the session cannot be written: {error}") from error
        await call.done_writing()


def _problem(writer: "asyncio.Task[None]") -> SluiceError | None:
    """What ended the writing, if it was neither the other side nor a cancellation."""
    if not writer.done() or writer.cancelled():
        return None
    error = writer.exception()
    return error if isinstance(error, SluiceError) else None
