"""This master's session to whatever worker is at one address: kept open, and opened again for as long as it is wanted.

    connecting --both hellos--> up --stream breaks, or silence--> connecting ... until `close`

The link knows nothing of attempts: it carries messages, and says what became of the stream.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any, Protocol

import grpc
import grpc.aio

from services.common import rpc
from services.common.errors import SluiceError
from services.common.messages import PROTOCOL, Abort, MasterHello, MasterMessage, WorkerHello, WorkerMessage, WorkerRef
from services.common.wire import WireError, master_messages_to_protos, worker_messages_from_proto
from services.pd_master.silence import SilenceWatch
from services.pd_master.unreached import Unreached
from services.worker.client_stream import written
from services.worker.outbox import Outbox
from sluice.v1 import worker_pb2 as pb
from sluice.v1 import worker_pb2_grpc

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
_PROBE_TIMEOUT_S = 1.0


class LinkHandler(Protocol):
    """The registry, as its links see it. No method waits."""

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:
        """What to say first to the address where this worker was seen last."""
        ...

    def link_up(self, link: "WorkerLink", hello: WorkerHello) -> None:
        """The worker answered; the session begins."""
        ...

    def link_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message came."""
        ...

    def link_down(self, link: "WorkerLink", worker: WorkerRef) -> None:
        """The session is gone, after a silence of `link.quiet_s`; another one is tried."""
        ...

    def link_refused(self, worker: WorkerRef) -> None:
        """Nobody listens at the address where this worker was."""
        ...


class WorkerLink:
    """Owned by the registry: `run` is a task for as long as discovery names the address."""

    def __init__(self, address: str, handler: LinkHandler, silence_s: float, dial: rpc.Dial = rpc.channel) -> None:
        self.address = address
        self._dial = dial
        self.worker: WorkerRef | None = None
        """Who was there last."""
        self.channel: grpc.aio.Channel | None = None
        self._handler = handler
        self._unreached = Unreached(address)
        self._silence_s = silence_s
        """Workers say something each second; after so much silence the session is ended."""
        self._silence: SilenceWatch | None = None
        self._outbox: Outbox[MasterMessage] | None = None
        self._in_batches = False
        """How the worker reads."""

    @property
    def quiet_s(self) -> float:
        """How long the worker has said nothing on the session that there is, or that was last."""
        return 0.0 if self._silence is None else self._silence.quiet_s

    def say(self, message: MasterMessage) -> None:
        """Write a message; dropped without a session, since the protocol resumes by itself. Nobody waits for an Abort:
        nearly all are of attempts whose output is here in full."""
        if self._outbox is not None:
            self._outbox.say(message, can_wait=isinstance(message, Abort))

    async def run(self) -> None:
        """Keep a session until cancelled."""
        backoff = rpc.Backoff()
        while True:
            try:
                await self._session(backoff)
            except (grpc.aio.AioRpcError, SluiceError, TimeoutError) as error:
                self._unreached.failed(error)
            await self._probe()
            await asyncio.sleep(backoff.next_s())

    async def _session(self, backoff: rpc.Backoff) -> None:
        outbox: Outbox[MasterMessage] = Outbox(f"worker at {self.address}")
        self._in_batches = False
        outbox.say(self._handler.hello_for(self.worker))
        async with self._dial(self.address) as self.channel:
            stub: Any = worker_pb2_grpc.WorkerServiceStub(self.channel)
            call = stub.Session()
            async with written(call, outbox, self._protos):
                incoming = _messages(call)
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    hello = await anext(incoming)
                if not isinstance(hello, WorkerHello) or hello.protocol != PROTOCOL:
                    raise WireError(f"expected a WorkerHello of protocol {PROTOCOL}, got {hello}")
                backoff.reset()
                self._unreached.reached()
                await self._serve(hello, outbox, incoming)

    async def _serve(
        self,
        hello: WorkerHello,
        outbox: Outbox[MasterMessage],
        incoming: AsyncIterator[WorkerMessage],
    ) -> None:
        self.worker, self._outbox, self._in_batches = hello.worker, outbox, hello.reads_batches
        silence = self._silence = SilenceWatch(self._silence_s)
        self._handler.link_up(self, hello)
        try:
            async with silence:
                async for message in incoming:  # always drained, whatever clients do (R15)
                    self._handler.link_said(hello.worker, message)
                    silence.heard()
        finally:
            self._outbox = None
            self._handler.link_down(self, hello.worker)

    def _protos(self, messages: list[MasterMessage]) -> Iterator[pb.WorkerServiceSessionRequest]:
        return master_messages_to_protos(messages, in_batches=self._in_batches)

    async def _probe(self) -> None:
        """Ask the host itself: a refused connection is definite where a broken stream is not."""
        if self.worker is None:
            return
        host, _, port = self.address.rpartition(":")
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            self._handler.link_refused(self.worker)
        except (OSError, TimeoutError):
            log.debug("%s cannot be reached", self.address)
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _messages(protos: AsyncIterable[pb.WorkerServiceSessionResponse]) -> AsyncIterator[WorkerMessage]:
    """What the worker says. WireError when the stream ends or makes no sense."""
    async for proto in protos:
        for message in worker_messages_from_proto(proto):
            yield message
    raise WireError("the worker ended the stream")
