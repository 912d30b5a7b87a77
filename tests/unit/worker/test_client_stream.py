"""Writing a stream between pods beside reading it: nothing outlives the call, and what ends the writing is heard."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from services.common import rpc
from services.common.messages import Reconcile
from services.common.wire import master_message_to_proto
from services.worker.client_stream import ToProtos, written
from services.worker.outbox import MAX_WAITING, Outbox
from services.worker.session_errors import SessionOverflowError, UnwritableError
from sluice.v1 import worker_pb2_grpc
from tests.ports import free_ports

SERVICE = "sluice.v1.WorkerService"
MESSAGE = Reconcile([])
TO_PROTOS: ToProtos[Any] = partial(map, master_message_to_proto)


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[str]:
    """The address of a host that takes connections and says nothing."""
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest_asyncio.fixture
async def leaving() -> AsyncIterator[str]:
    """The address of a worker that ends each session."""

    async def session(_requests: object, _context: object) -> None:
        pass

    handler: Any = grpc.stream_stream_rpc_method_handler(session)
    server = rpc.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Session": handler})])
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


def writers() -> list[str]:
    """Tasks that write a stream. gRPC's own end when they come to it."""
    return [str(task) for task in asyncio.all_tasks() if "_write" in str(task) or "request_iterator" in str(task)]


async def read_first(address: str, outbox: Outbox[Any], to_protos: ToProtos[Any] = TO_PROTOS) -> None:
    """A session that waits for its first message."""
    async with rpc.channel(address) as channel:
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        call = stub.Session()
        async with written(call, outbox, to_protos):
            await anext(aiter(call))


async def test_a_session_that_the_other_side_ends_leaves_no_task(leaving: str) -> None:
    with pytest.raises(StopAsyncIteration):
        await read_first(leaving, Outbox("somebody"))
    assert writers() == []


async def test_a_call_to_nobody_leaves_no_task() -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await read_first(f"127.0.0.1:{free_ports(1)[0]}", Outbox("nobody"))
    assert writers() == []


async def test_what_ends_the_writing_is_what_the_reader_hears(silent: str) -> None:
    outbox: Outbox[Any] = Outbox("somebody")
    outbox.say(*[MESSAGE] * (MAX_WAITING + 1))
    with pytest.raises(SessionOverflowError):
        await read_first(silent, outbox)


async def test_a_message_that_cannot_be_written_ends_the_session_and_is_logged(
    leaving: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_messages: list[Any]) -> list[object]:
        raise ValueError("no such field")

    outbox: Outbox[Any] = Outbox("somebody")
    outbox.say(MESSAGE)
    with pytest.raises(UnwritableError, match="no such field"):
        await read_first(leaving, outbox, broken)
    assert "cannot be written" in caplog.text


async def test_a_session_can_be_cancelled(silent: str) -> None:
    outbox: Outbox[Any] = Outbox("somebody")
    session = asyncio.create_task(read_first(silent, outbox))
    await asyncio.sleep(0.05)
    session.cancel()
    await asyncio.wait({session}, timeout=60)
    assert session.cancelled()
    assert writers() == []
