"""A prefill worker's session to one start of one decode worker: kept open, opened again, never to another start.

connecting --DecodeHello of the right incarnation--> up --break--> connecting ... until `close`
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Protocol

import grpc
import grpc.aio

from services.common import rpc
from services.common.errors import SluiceError
from services.common.messages import PROTOCOL, Peer, WorkerRef
from services.common.peer_messages import DecodeHello, DecodeMessage, PrefillHello, PrefillMessage
from services.common.wire import decode_message_from_proto, prefill_message_to_proto
from services.worker.client_stream import written
from services.worker.outbox import Outbox
from services.worker.session_errors import LeavingError, ProtocolMismatchError
from services.worker.stream import HELLO_TIMEOUT_S
from sluice.v1 import reservation_pb2 as pb
from sluice.v1 import reservation_pb2_grpc

log = logging.getLogger(__name__)


class LinkHandler(Protocol):
    """The prefill service, as its links see it. No method waits."""

    def link_up(self, hello: DecodeHello) -> None:
        """The decode worker answered; a session begins."""
        ...

    def link_said(self, worker: WorkerRef, message: DecodeMessage) -> None:
        """A message came."""
        ...

    def link_down(self, worker: WorkerRef) -> None:
        """The session is gone; another one is tried."""
        ...


class PeerLink:
    """Owned by the prefill service: `run` is a task for as long as a master names this peer."""

    def __init__(self, peer: Peer, own: PrefillHello, handler: LinkHandler, dial: rpc.Dial) -> None:
        self.peer = peer
        self._dial = dial
        self._own = own
        self._handler = handler
        self._outbox: Outbox[PrefillMessage] | None = None
        self._closed = False

    @property
    def up(self) -> bool:
        """Whether a session stands."""
        return self._outbox is not None

    def say(self, message: PrefillMessage) -> None:
        """Write a message; dropped without a session, since the protocol resumes by itself."""
        if self._outbox is not None:
            self._outbox.say(message)

    def close(self) -> None:
        """End the session and do not open another."""
        self._closed = True
        if self._outbox is not None:
            self._outbox.close(LeavingError("this worker no longer needs the session"))

    async def run(self) -> None:
        """Keep a session until `close`, or until it is cancelled."""
        backoff = rpc.Backoff()
        while not self._closed:
            try:
                await self._session(backoff)
            except (grpc.aio.AioRpcError, SluiceError, TimeoutError) as error:
                reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else error
                log.debug("session to %s: %s", self.peer.worker.worker_id, reason)
            if not self._closed:
                await asyncio.sleep(backoff.next_s())

    async def _session(self, backoff: rpc.Backoff) -> None:
        async with self._dial(self.peer.address) as channel:
            outbox: Outbox[PrefillMessage] = Outbox(f"decode worker {self.peer.worker.worker_id}")
            outbox.say(self._own)
            stub: Any = reservation_pb2_grpc.ReservationServiceStub(channel)
            call = stub.Session()
            async with written(call, outbox, partial(map, prefill_message_to_proto)):
                incoming = aiter(call)
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    hello = self._checked(await _read_hello(incoming))
                backoff.reset()
                await self._serve(hello, outbox, incoming)

    def _checked(self, hello: DecodeMessage) -> DecodeHello:
        if not isinstance(hello, DecodeHello) or hello.protocol != PROTOCOL:
            raise ProtocolMismatchError(f"expected a DecodeHello of protocol {PROTOCOL}, got {hello}")
        if hello.worker != self.peer.worker:
            raise ProtocolMismatchError(f"{self.peer.address} is another start: {hello.worker.incarnation}")
        return hello

    async def _serve(
        self,
        hello: DecodeHello,
        outbox: Outbox[PrefillMessage],
        incoming: AsyncIterator[pb.ReservationServiceSessionResponse],
    ) -> None:
        self._outbox = outbox
        self._handler.link_up(hello)
        try:
            async for message in incoming:
                self._handler.link_said(self.peer.worker, decode_message_from_proto(message))
        finally:
            self._outbox = None
            self._handler.link_down(self.peer.worker)


async def _read_hello(incoming: AsyncIterator[pb.ReservationServiceSessionResponse]) -> DecodeMessage:
    try:
        return decode_message_from_proto(await anext(incoming))
    except StopAsyncIteration:
        raise ProtocolMismatchError("the decode worker ended the stream before its hello") from None
