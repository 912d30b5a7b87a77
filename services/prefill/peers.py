"""The decode workers of a prefill worker: a session and a proven transfer to each (R16).

wanted --session stands--> connecting --PeerProven--> proven --PeerLost--> (a pause) --> connecting ...
not wanted any more, or another start at its place: session closed, transfer dropped
"""

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import cast

from services.common import ipc
from services.common.messages import PROTOCOL, Peer, ProvenPair, WorkerRef
from services.common.metrics import TransferMetrics
from services.common.peer_messages import DecodeHello, DecodeMessage, PrefillHello, PrefillMessage
from services.prefill.handoff import PrefillHandoff
from services.prefill.observe import ReservationTimes
from services.prefill.peer_link import PeerLink
from services.worker.parts import Context

log = logging.getLogger(__name__)

RECONNECT_S = 0.5
"""Between the loss of a transfer and the next try, while the session stands."""


@dataclass(slots=True)
class _Pair:
    link: PeerLink
    task: asyncio.Task[None]
    session: int = 0
    hello: DecodeHello | None = None
    """Set while the session stands."""
    connecting: bool = False
    proven: ProvenPair | None = None
    retry: asyncio.TimerHandle | None = None


class DecodePeers:
    """`PeerPort` and `LinkHandler` of a prefill worker; one per process, on its event loop."""

    def __init__(
        self, context: Context, core: PrefillHandoff, metrics: TransferMetrics, times: ReservationTimes
    ) -> None:
        self._own = PrefillHello(PROTOCOL, context.ref, context.group)
        self._core = core
        self._service = context.service
        self._engine = context.engine
        self._dial = context.dial
        self._metrics = metrics
        self._times = times
        self._numbers = itertools.count(1)
        self._pairs: dict[str, _Pair] = {}
        """By worker id: one start of it at a time."""

    # ------------------------------------------------------------------------------------------------------ PeerPort

    def send(self, worker: WorkerRef, message: PrefillMessage | DecodeMessage) -> None:
        """Say something; dropped without a session to exactly this start."""
        said = cast(PrefillMessage, message)
        self._times.said(said)
        pair = self._pairs.get(worker.worker_id)
        if pair is not None and pair.link.peer.worker == worker:
            pair.link.say(said)

    def want(self, peers: tuple[Peer, ...]) -> None:
        """Keep sessions and transfers to these and to no others."""
        wanted = {peer.worker.worker_id: peer for peer in peers}
        for worker_id, pair in list(self._pairs.items()):
            if wanted.get(worker_id) != pair.link.peer:
                self._drop(worker_id, pair)
        for worker_id, peer in wanted.items():
            if worker_id not in self._pairs:
                link = PeerLink(peer, self._own, self, self._dial)
                task = asyncio.create_task(link.run())
                self._service.watch(task)
                self._pairs[worker_id] = _Pair(link, task)

    def proven(self) -> list[ProvenPair]:
        """Pairs with a session and a proven transfer."""
        return [pair.proven for pair in self._pairs.values() if pair.proven is not None and pair.hello is not None]

    def close(self) -> None:
        """End everything."""
        self.want(())

    def _drop(self, worker_id: str, pair: _Pair) -> None:
        del self._pairs[worker_id]
        pair.link.close()
        pair.task.cancel()
        if pair.retry is not None:
            pair.retry.cancel()
        self._down(pair)
        if pair.connecting or pair.proven is not None:
            self._engine.send(ipc.DropPeer(worker_id))

    # --------------------------------------------------------------------------------------------------- LinkHandler

    def link_up(self, hello: DecodeHello) -> None:
        """A session begins: its engine is connected to, unless that stood all along."""
        pair = self._pairs.get(hello.worker.worker_id)
        if pair is None or pair.link.peer.worker != hello.worker:
            return
        pair.hello, pair.session = hello, next(self._numbers)
        session = pair.session
        log.info("session to decode worker %s", hello.worker.worker_id)
        self._service.hand_in(lambda now: self._core.peer_hello(hello.worker, session, now))
        self._connect(pair)

    def link_said(self, worker: WorkerRef, message: DecodeMessage) -> None:
        """A message came."""
        self._times.heard(message)
        self._service.hand_in(lambda now: self._core.from_peer(worker, message))  # noqa: ARG005

    def link_down(self, worker: WorkerRef) -> None:
        """The session is gone; the transfer may still stand."""
        pair = self._pairs.get(worker.worker_id)
        if pair is not None and pair.link.peer.worker == worker:
            self._down(pair)

    def _down(self, pair: _Pair) -> None:
        if pair.hello is None:
            return
        worker, session = pair.hello.worker, pair.session
        pair.hello = None
        log.info("no session to decode worker %s", worker.worker_id)
        self._service.hand_in(lambda now: self._core.peer_closed(worker, session))  # noqa: ARG005

    def _connect(self, pair: _Pair) -> None:
        pair.retry = None
        hello = pair.hello
        if hello is None or pair.connecting or pair.proven is not None:
            return
        pair.connecting = True
        worker = hello.worker
        self._engine.send(
            ipc.ConnectPeer(
                worker.worker_id, hello.transfer_host, hello.transfer_ports, worker.incarnation, hello.group
            )
        )

    # ------------------------------------------------------------------------------------------------------ engine

    def on_engine_event(self, event: ipc.Event) -> None:
        """What the engine says of its transfers."""
        match event:
            case ipc.PeerProven(peer_id=peer_id, lane=lane, gb_per_s=rate):
                self._proven(peer_id, lane, rate)
            case ipc.PeerLost(peer_id=peer_id, reason=reason):
                self._lost(peer_id, reason)
            case ipc.PushDone() | ipc.TransferFailed():
                self._observe(event)

    def _proven(self, peer_id: str, lane: str, gb_per_s: float) -> None:
        pair = self._pairs.get(peer_id)
        if pair is None:
            return
        pair.connecting, pair.proven = False, ProvenPair(pair.link.peer.worker, lane, gb_per_s)
        self._metrics.gb_per_s.labels(peer_id, lane).set(gb_per_s)
        log.info("transfer to %s proven: %s, %.2f GB/s", peer_id, lane, gb_per_s)
        self._service.tell_masters()

    def _lost(self, peer_id: str, reason: str) -> None:
        pair = self._pairs.get(peer_id)
        if pair is None:
            return
        log.info("transfer to %s lost: %s", peer_id, reason)
        if pair.proven is not None:
            self._metrics.gb_per_s.remove(peer_id, pair.proven.lane)
        pair.connecting, pair.proven = False, None
        self._service.tell_masters()
        if pair.retry is None:
            pair.retry = asyncio.get_running_loop().call_later(RECONNECT_S, self._connect, pair)

    def _observe(self, event: ipc.PushDone | ipc.TransferFailed) -> None:
        if isinstance(event, ipc.TransferFailed):
            self._metrics.failures.labels(event.kind).inc()
            return
        self._metrics.num_bytes.inc(event.num_bytes)
        self._metrics.push.observe(event.seconds)
        self._metrics.exposed.observe(event.exposed_s)
