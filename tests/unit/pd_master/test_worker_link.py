# ruff: noqa: ARG002 - the arguments are the protocol's
"""How a master writes to workers of this version and of the one before, on a real stream."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from services.common import rpc
from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Abort,
    CacheWanted,
    Limits,
    MasterHello,
    MasterRef,
    Peers,
    Role,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.wire import master_messages_from_proto, worker_message_to_proto
from services.pd_master.worker_link import WorkerLink
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

KEY = AttemptKey("ab" * 16, 1)
LIMITS = Limits(1, 1, 1, 1, (), 1)


class Worker(worker_pb2_grpc.WorkerServiceServicer):
    """Says hello and keeps what it is told."""

    def __init__(self, *, reads_batches: bool) -> None:
        ref = WorkerRef("w", "1")
        self._hello = WorkerHello(PROTOCOL, ref, Role.MIXED, "g", "m", "", LIMITS, reads_batches=reads_batches)
        self.told: asyncio.Queue[pb.WorkerServiceSessionRequest] = asyncio.Queue()

    async def GetTokenizer(  # noqa: N802
        self, request: pb.GetTokenizerRequest, context: object
    ) -> AsyncGenerator[pb.GetTokenizerResponse]:
        for _ in ():
            yield pb.GetTokenizerResponse()

    async def Session(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.WorkerServiceSessionRequest],
        context: object,
    ) -> AsyncGenerator[pb.WorkerServiceSessionResponse]:
        yield worker_message_to_proto(self._hello)
        async for request in request_iterator:
            self.told.put_nowait(request)


class Handler:
    """Of one link, which it speaks through once."""

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:
        return MasterHello(PROTOCOL, MasterRef("m", "1"), [], reads_batches=True)

    def link_up(self, link: WorkerLink, hello: WorkerHello) -> None:
        link.say(Abort([KEY]))
        link.say(Peers([]))
        link.say(CacheWanted())

    def link_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """Nothing comes."""

    def link_down(self, link: WorkerLink, worker: WorkerRef) -> None:
        """The test ends."""

    def link_refused(self, worker: WorkerRef) -> None:
        """The test ends."""


@pytest.mark.parametrize(("reads_batches", "sizes"), [(True, [1, 3]), (False, [1, 1, 1, 1])])
async def test_messages_travel_as_their_worker_reads_them(reads_batches: bool, sizes: list[int]) -> None:
    worker, server = Worker(reads_batches=reads_batches), rpc.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    link = asyncio.create_task(WorkerLink(f"127.0.0.1:{port}", Handler(), 30.0).run())
    try:
        async with asyncio.timeout(30):
            told = [master_messages_from_proto(await worker.told.get()) for _ in sizes]
    finally:
        link.cancel()
        await server.stop(None)
    assert [len(messages) for messages in told] == sizes
    kinds = [type(message) for messages in told for message in messages]
    assert kinds == [MasterHello, Abort, Peers, CacheWanted]
