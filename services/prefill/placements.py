"""The decode worker's half of a prompt, as the prefill worker sees it: asking for room, hearing the answer, losing it.

    NOT_ASKED --Reserve--> ASKED --Granted--> GRANTED (Placed is said, KV is pushed as it is computed)
                             ^ |                 |
                    Redirect | v                 v
                             REFUSED <-----------'   Denied, Revoked, HandoverFailed, TransferFailed, peer gone

In REFUSED the KV stays and its master is asked for another decode worker. Anything but a definite refusal is followed
by Cancel (R5). While the session to a decode worker is gone its placements stay; when it comes back, what was
not answered is said again, and when it does not within `PEER_GRACE_S`, they are lost.
"""

from collections.abc import Callable, Iterator, Mapping

from services.common.ipc import AttemptKey
from services.common.messages import Placed, PlacementRefused, RefusalReason, WorkerRef
from services.common.peer_messages import Cancel, Held, PrefillMessage
from services.prefill.handoff_attempt import Compute, HandoffAttempt, Placement
from services.worker.protocol.effects import Effect, SendToPeer
from services.worker.protocol.masters import Masters
from services.worker.protocol.peers import Peers

PEER_GRACE_S = 2.0
_MISSES = 2


class Placements:
    """Part of `PrefillHandoff`, which owns the attempts."""

    def __init__(
        self,
        attempts: Mapping[int, HandoffAttempt],
        masters: Masters[HandoffAttempt],
        emit: Callable[[Effect], None],
    ) -> None:
        self._attempts = attempts
        self._masters = masters
        self._emit = emit
        self._peers = Peers()

    # ----------------------------------------------------------------------------------------------------- one attempt

    def ask(self, one: HandoffAttempt, now: float) -> None:
        """Ask for room, unless it was asked for already (R5: at most one Reserve is unanswered)."""
        if one.placement is Placement.NOT_ASKED:
            one.placement, one.peer_absent_since, one.peer_misses = Placement.ASKED, None, 0
            self._send(one, one.reserve(now))

    def hand_over(self, one: HandoffAttempt) -> None:
        """All is computed."""
        self._send(one, one.handover())

    def withdraw(self, one: HandoffAttempt) -> None:
        """The room is not needed any more, if it was asked for."""
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))

    def lose(
        self, one: HandoffAttempt, reason: RefusalReason, retry_after_s: float | None = None, text: str = ""
    ) -> None:
        """There is no room there; its master will say where else."""
        one.placement = Placement.REFUSED
        one.said.pop(Placed, None)
        self._masters.tell(one, PlacementRefused(one.key, reason, retry_after_s, text))

    def transfer_failed(self, one: HandoffAttempt, text: str) -> None:
        """The KV could not be moved; the decode worker may not know that yet."""
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
            self.lose(one, RefusalReason.TRANSFER, text=text)

    # -------------------------------------------------------------------------------------------------- decode workers

    def hello(self, worker: WorkerRef, session: int, now: float) -> None:
        """A session begins: what is unanswered is said again, what an earlier start granted is lost."""
        self._peers.hello(worker, session)
        for one in list(self._placed()):
            if one.decode.worker == worker:
                self._say_again(one, now)
            elif one.decode.worker.worker_id == worker.worker_id:
                self.lose(one, RefusalReason.NO_PEER, text="the decode worker has restarted")

    def closed(self, worker: WorkerRef, session: int) -> None:
        """That session ended."""
        self._peers.closed(worker, session)

    def held(self, worker: WorkerRef, keys: set[AttemptKey]) -> None:
        """What the decode worker believes in: what it left out twice in a row is lost (R8)."""
        for one in list(self._placed()):
            if one.decode.worker != worker:
                continue
            one.peer_misses = 0 if one.key in keys else one.peer_misses + 1
            if one.peer_misses >= _MISSES:
                self._send(one, Cancel(one.key))
                self.lose(one, RefusalReason.STALE, text="the decode worker does not hold it")

    def tick(self, now: float) -> None:
        """Give up those that are gone for too long, and say to the others what is held here."""
        holds: dict[WorkerRef, list[AttemptKey]] = {peer: [] for peer in self._peers.present()}
        for one in list(self._placed()):
            if self._peers.is_present(one.decode.worker):
                one.peer_absent_since = None
                holds[one.decode.worker].append(one.key)
            elif one.peer_absent_since is None:
                one.peer_absent_since = now
            elif now - one.peer_absent_since >= PEER_GRACE_S:
                self.lose(one, RefusalReason.NO_PEER, text="no session to the decode worker")
        for peer, keys in holds.items():
            self._emit(SendToPeer(peer, Held(keys)))

    def _say_again(self, one: HandoffAttempt, now: float) -> None:
        one.peer_absent_since, one.peer_misses = None, 0
        if one.placement is Placement.ASKED:
            self._send(one, one.reserve(now))
        elif one.compute is Compute.COMPUTED:
            self._send(one, one.handover())

    def _placed(self) -> Iterator[HandoffAttempt]:
        return (one for one in self._attempts.values() if one.is_waiting_for_peer)

    def _send(self, one: HandoffAttempt, message: PrefillMessage) -> None:
        self._emit(SendToPeer(one.decode.worker, message))
