"""The catalog: a model is served for as long as any worker of its group can still send its files."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc.aio
import pytest

from services.common import rpc
from services.common.messages import PROTOCOL, Limits, Role, WorkerHello, WorkerRef
from services.pd_master import catalog as catalog_module
from services.pd_master.catalog import Catalog
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

Call: TypeAlias = "grpc.aio.ServicerContext[pb.GetTokenizerRequest, pb.GetTokenizerResponse]"
Behaviour: TypeAlias = Callable[[Call], AsyncGenerator[pb.GetTokenizerResponse]]


class Files(worker_pb2_grpc.WorkerServiceServicer):
    """A worker's files, or what becomes of who asks for them."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self._behaviours = list(behaviours)
        self.num_asked = 0
        self.asked = asyncio.Event()

    def Session(self, request_iterator: object, context: object) -> Any:  # noqa: ANN401, N802 - the RPC's name
        """Not asked for here; mypy wants it, and at run time the base does the same."""
        raise NotImplementedError

    async def GetTokenizer(  # noqa: N802 - the RPC's name
        self,
        request: pb.GetTokenizerRequest,  # noqa: ARG002
        context: Call,
    ) -> AsyncGenerator[pb.GetTokenizerResponse]:
        """The n-th call has the n-th behaviour, and those after it the last."""
        self.num_asked += 1
        self.asked.set()
        async for part in self._behaviours[min(self.num_asked, len(self._behaviours)) - 1](context):
            yield part


async def fails(context: Call) -> AsyncGenerator[pb.GetTokenizerResponse]:
    yield pb.GetTokenizerResponse(name="tokenizer.json", chunk=b"half")
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")


async def hangs(context: Call) -> AsyncGenerator[pb.GetTokenizerResponse]:  # noqa: ARG001
    await asyncio.Event().wait()
    yield pb.GetTokenizerResponse()


async def sends(context: Call) -> AsyncGenerator[pb.GetTokenizerResponse]:  # noqa: ARG001
    yield pb.GetTokenizerResponse(name="tokenizer.json", chunk=b"{}")


@contextlib.asynccontextmanager
async def channel_to(files: Files) -> AsyncIterator[grpc.aio.Channel]:
    server = rpc.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(files, server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    async with rpc.channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@contextlib.asynccontextmanager
async def catalog_of_one() -> AsyncIterator[tuple[Catalog, asyncio.Event]]:
    catalog, served = Catalog(), asyncio.Event()
    catalog.on_served = lambda _: served.set()
    try:
        yield catalog, served
    finally:
        await catalog.close()


def hello(worker_id: str) -> WorkerHello:
    return WorkerHello(PROTOCOL, WorkerRef(worker_id, "1"), Role.DECODE, "g", "m", "a:1", Limits(1, 1, 1, 1, (0,), 1))


async def test_a_fetch_that_failed_is_tried_again_while_the_session_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "_RETRY_S", 0.01)
    files = Files(fails, fails, sends)
    async with channel_to(files) as channel, catalog_of_one() as (catalog, served):
        catalog.seen(hello("w"), channel)
        await asyncio.wait_for(served.wait(), 30)
        assert files.num_asked == 3
        assert (catalog.model("m").tokenizer_dir / "tokenizer.json").read_bytes() == b"{}"


async def test_another_worker_is_asked_when_the_first_ones_session_ends() -> None:
    first, second = Files(hangs), Files(sends)
    async with channel_to(second) as there, catalog_of_one() as (catalog, served):
        async with channel_to(first) as channel:
            catalog.seen(hello("first"), channel)
            await asyncio.wait_for(first.asked.wait(), 30)
            catalog.seen(hello("second"), there)
        await asyncio.wait_for(served.wait(), 30)


async def test_a_worker_that_comes_back_is_asked_again() -> None:
    before, after = Files(hangs), Files(sends)
    async with catalog_of_one() as (catalog, served):
        async with channel_to(before) as channel:
            catalog.seen(hello("w"), channel)
            await asyncio.wait_for(before.asked.wait(), 30)
        async with channel_to(after) as channel:
            catalog.seen(hello("w"), channel)
            await asyncio.wait_for(served.wait(), 30)
