"""`WorkerService` on gRPC: streams and files. What a message means is decided by the service behind `MasterHandler`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Protocol

from services.common.messages import MasterHello, MasterMessage
from services.common.wire import master_messages_from_proto, worker_messages_to_protos
from services.worker.session import MasterSession
from services.worker.stream import converse, read_hello
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

CHUNK_BYTES = 1 << 20
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


class MasterHandler(Protocol):
    """The worker's service, as the stream's edge sees it. No method waits."""

    def open_session(self, hello: MasterHello) -> MasterSession:
        """A master came: its session, into which WorkerHello has been said already."""
        ...

    def master_said(self, session: MasterSession, message: MasterMessage) -> None:
        """A message came."""
        ...

    def session_lost(self, session: MasterSession) -> None:
        """The stream is gone, for whatever reason."""
        ...


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """One per worker process. `folder`: where the model's tokenizer lies."""

    def __init__(self, handler: MasterHandler, folder: Path) -> None:
        self._handler = handler
        self._folder = folder

    async def Session(  # noqa: N802 - the RPC's name
        self,
        request_iterator: AsyncIterator[pb.WorkerServiceSessionRequest],
        context: object,  # noqa: ARG002
    ) -> AsyncGenerator[pb.WorkerServiceSessionResponse]:
        """One master's stream, from its hello to its end."""
        incoming = _messages(request_iterator)
        session = self._handler.open_session(await read_hello(incoming, MasterHello))
        try:
            async with aclosing(
                converse(incoming, session.outbox, partial(self._handler.master_said, session))
            ) as batches:
                async for batch in batches:
                    for proto in worker_messages_to_protos(batch, in_batches=session.in_batches):
                        yield proto
        finally:
            self._handler.session_lost(session)

    async def GetTokenizer(  # noqa: N802 - the RPC's name
        self,
        request: pb.GetTokenizerRequest,  # noqa: ARG002
        context: object,  # noqa: ARG002
    ) -> AsyncGenerator[pb.GetTokenizerResponse]:
        """The model's tokenizer files, in chunks."""
        for name in TOKENIZER_FILES:
            path = self._folder / name
            if path.is_file():
                data = await asyncio.to_thread(path.read_bytes)
                for start in range(0, max(len(data), 1), CHUNK_BYTES):
                    yield pb.GetTokenizerResponse(name=name, chunk=data[start : start + CHUNK_BYTES])


async def _messages(requests: AsyncIterator[pb.WorkerServiceSessionRequest]) -> AsyncIterator[MasterMessage]:
    async for request in requests:
        for message in master_messages_from_proto(request):
            yield message
