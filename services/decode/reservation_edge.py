"""`ReservationService` on gRPC, on a decode worker. What a message means is decided behind `PeerHandler`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Protocol

from services.common.messages import WorkerRef
from services.common.peer_messages import DecodeMessage, PrefillHello, PrefillMessage
from services.common.wire import decode_message_to_proto, prefill_message_from_proto
from services.worker.outbox import Outbox
from services.worker.stream import converse, read_hello
from sluice.v1 import reservation_pb2 as pb
from sluice.v1 import reservation_pb2_grpc


class PeerSession:
    """One stream from one start of a prefill worker."""

    def __init__(self, worker: WorkerRef) -> None:
        self.worker = worker
        self.outbox: Outbox[DecodeMessage] = Outbox(f"prefill worker {worker.worker_id}")


class PeerHandler(Protocol):
    """The decode service, as the stream's edge sees it. No method waits."""

    def open_peer(self, hello: PrefillHello) -> PeerSession:
        """A prefill worker came: its session, into which DecodeHello has been said. Raises ProtocolMismatchError."""
        ...

    def peer_said(self, session: PeerSession, message: PrefillMessage) -> None:
        """A message came."""
        ...

    def peer_lost(self, session: PeerSession) -> None:
        """The stream is gone, for whatever reason."""
        ...


class ReservationServicer(reservation_pb2_grpc.ReservationServiceServicer):
    """One per decode worker process."""

    def __init__(self, handler: PeerHandler) -> None:
        self._handler = handler

    async def Session(  # noqa: N802 - the RPC's name
        self,
        request_iterator: AsyncIterator[pb.ReservationServiceSessionRequest],
        context: object,  # noqa: ARG002
    ) -> AsyncGenerator[pb.ReservationServiceSessionResponse]:
        """One prefill worker's stream, from its hello to its end."""
        incoming = _messages(request_iterator)
        session = self._handler.open_peer(await read_hello(incoming, PrefillHello))
        try:
            async with aclosing(
                converse(incoming, session.outbox, partial(self._handler.peer_said, session))
            ) as batches:
                async for batch in batches:
                    for message in batch:
                        yield decode_message_to_proto(message)
        finally:
            self._handler.peer_lost(session)


async def _messages(requests: AsyncIterator[pb.ReservationServiceSessionRequest]) -> AsyncIterator[PrefillMessage]:
    async for request in requests:
        yield prefill_message_from_proto(request)
