"""The decode worker's side of the protocol: reservations for KV on its way, and what becomes of them.

               Reserve         engine: Reserved          Handover         engine: Joined        all choices finished
    (nothing) --------> ASKED ------------------> RESERVED ------> JOINING -------------> JOINED -------------> DONE
                waits in the Router       slots are promised,   all KV is       decodes, is preempted,     only output
                                          KV arrives            announced       resumes                    is kept

    Cancel, Revoked, TransferFailed, lease run out, refused by the Router, prefill worker restarted:
        from any state left of JOINED back to nothing, with a tombstone.
    Abort, not named by its master, master silent: from any state.

A short or cached prompt that its master submits here (`computing`) is its master's from the start: it is JOINED while
it waits in the Router.

ASKED to JOINING belong to the prefill worker, which renews their lease by naming them each second; from JOINED on an
attempt is its master's alone. Answers are given again when asked again: all that a prefill worker says is idempotent.

Pure: messages, events and `now` in, effects out (`services.worker.protocol.effects`). The caller is the decode service,
in the control process, on its event loop.
"""

from collections.abc import Callable, Iterator

from services.common import ipc
from services.common.errors import SluiceError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Joined,
    MasterMessage,
    MasterRef,
    Reconcile,
    RefusalReason,
    Submit,
    WorkerRef,
)
from services.common.peer_messages import (
    Cancel,
    Denied,
    Granted,
    Handover,
    HandoverFailed,
    Held,
    JoinConfirmed,
    PrefillMessage,
    Reserve,
    Revoked,
)
from services.decode.reservation import NOBODY, Reservation, State
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent
from services.worker.protocol.attempt import OpenLog
from services.worker.protocol.computing import Computing
from services.worker.protocol.core import DEFAULT_TIMES, ProtocolCore
from services.worker.protocol.decoding import Decoding
from services.worker.protocol.effects import Effect, EndJob, EngineCommand, SendToPeer, StartJob
from services.worker.protocol.peers import Peers
from services.worker.protocol.times import Times

_MISSES = 2


class DecodeReservations(ProtocolCore[Reservation]):
    """All attempts of one decode worker."""

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = DEFAULT_TIMES
    ) -> None:
        super().__init__(open_log, new_id, eos_token_ids, times)
        self.num_leases_expired = 0
        self._lease_s = times.reservation_lease_s
        self._peers = Peers()
        self._decoding = Decoding(self._masters, self._emit, open_log, new_id, eos_token_ids)
        self._computing = Computing(self._masters, self._decoding, self._emit, new_id, eos_token_ids)
        self._by_job: dict[int, Reservation] = {}
        """Reservations left of JOINED."""
        self._peer_misses: dict[AttemptKey, int] = {}

    @property
    def num_jobs(self) -> int:
        """Jobs that Router or engine have of them."""
        return len(self._by_job) + len(self._computing) + len(self._decoding)

    # --------------------------------------------------------------------------------------------------- from masters

    def from_master(self, ref: MasterRef, message: MasterMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        match message:
            case Abort(keys=keys):
                self._masters.abort(keys, now)
            case Reconcile(live=live):
                self._masters.reconcile(ref, live, now)
            case Submit():
                self._submit(ref, message, now)
        return self._take()

    def _submit(self, ref: MasterRef, submit: Submit, now: float) -> None:
        """A prompt that is computed here sooner than it would come from elsewhere."""
        if not self._is_new(ref, submit):
            return
        if submit.decode is not None:
            self._refuse(ref, submit.key, RefusalReason.NOT_READY, "a decode worker hands nothing over")
            return
        one = Reservation.of_submit(ref, submit, now, peer=NOBODY, job_id=0, lease_until=0.0, state=State.JOINED)
        self._computing.submit(one, now)

    # --------------------------------------------------------------------------------------------------- from prefill

    def peer_hello(self, worker: WorkerRef, session: int, now: float) -> list[Effect]:
        """A prefill worker opened a session. What an earlier start of it asked for is given back."""
        self._peers.hello(worker, session)
        for one in list(self._of_peers()):
            if one.peer.worker_id == worker.worker_id and one.peer != worker:
                self._end(one, now)
        return self._take()

    def peer_closed(self, worker: WorkerRef, session: int) -> list[Effect]:
        """That session ended; the leases run."""
        self._peers.closed(worker, session)
        return self._take()

    def from_peer(self, worker: WorkerRef, message: PrefillMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        match message:
            case Reserve():
                self._reserve(worker, message, now)
            case Handover():
                self._handover(worker, message, now)
            case Cancel(key=key):
                self._cancel(worker, key, now)
            case Held(keys=keys):
                self._peer_holds(worker, set(keys), now)
        return self._take()

    def _reserve(self, worker: WorkerRef, reserve: Reserve, now: float) -> None:
        known = self._masters.find(reserve.key)
        if known is not None and known.peer == worker:
            self._answer_again(known)
            return
        reason = self._refusal(reserve)
        if reason is not None:
            self._masters.tombstones.bury(reserve.key, now)
            self._send(worker, Denied(reserve.key, reason))
            return
        job_id = self._new_id()
        one = Reservation(
            reserve.key,
            reserve.master,
            reserve.request,
            reserve.choices,
            reserve.output_ids,
            arrival_s=now - reserve.age_s,
            peer=worker,
            job_id=job_id,
            lease_until=now + self._lease_s,
        )
        self._masters.add(one, now)
        self._by_job[job_id] = one
        self._emit(StartJob(one.work(job_id, WorkKind.RESERVATION), one.reserve_command(), one.request.traceparent))

    def _refusal(self, reserve: Reserve) -> RefusalReason | None:
        if self._masters.is_stale(reserve.key):
            return RefusalReason.STALE
        if not self._masters.is_present(reserve.master):
            return RefusalReason.NO_MASTER
        return RefusalReason.DRAINING if self.draining else None

    def _answer_again(self, one: Reservation) -> None:
        if one.state in {State.RESERVED, State.JOINING}:
            self._send(one.peer, Granted(one.key, one.local_tokens))
        elif one.state in {State.JOINED, State.DONE}:
            self._send(one.peer, JoinConfirmed(one.key))

    def _handover(self, worker: WorkerRef, handover: Handover, now: float) -> None:
        one = self._masters.find(handover.key)
        if one is None or one.peer != worker or one.state is State.ASKED:
            self._send(worker, HandoverFailed(handover.key, RefusalReason.STALE, "no such reservation"))
        elif one.state is not State.RESERVED:
            self._answer_again(one)
        elif handover.num_tokens != one.num_tokens:
            text = f"{handover.num_tokens} tokens are handed over, {one.num_tokens} were reserved"
            self._lose(one, RefusalReason.MISMATCH, text, now)
        else:
            one.handover, one.state = handover, State.JOINING
            self._emit(EngineCommand(one.join_command(self._eos_token_ids)))

    def _cancel(self, worker: WorkerRef, key: AttemptKey, now: float) -> None:
        one = self._masters.find(key)
        if one is None:
            self._masters.tombstones.bury(key, now)
        elif one.is_peers:
            self._end(one, now)
        else:
            self._send(worker, JoinConfirmed(key))

    def _peer_holds(self, worker: WorkerRef, keys: set[AttemptKey], now: float) -> None:
        for one in list(self._of_peers()):
            if one.peer != worker:
                continue
            if one.key in keys:
                one.lease_until = now + self._lease_s
                self._peer_misses.pop(one.key, None)
                continue
            misses = self._peer_misses[one.key] = self._peer_misses.get(one.key, 0) + 1
            if misses >= _MISSES:
                self._end(one, now)

    # ---------------------------------------------------------------------------------- from the Router and the engine

    def job_event(self, event: JobEvent, now: float) -> list[Effect]:
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""
        one = self._by_job.get(event.job_id)
        if one is not None:
            self._reservation_event(one, event, now)
        elif not self._computing.takes(event):
            self._decoding_event(event)
        return self._take()

    def _reservation_event(self, one: Reservation, event: JobEvent, now: float) -> None:
        match event:
            case ipc.Reserved(cached_tokens=cached):
                one.state, one.local_tokens = State.RESERVED, cached
                one.lease_until = now + self._lease_s
                self._send(one.peer, Granted(one.key, cached))
            case ipc.Joined():
                self._joined(one)
            case ipc.Revoked():
                self._send(one.peer, Revoked(one.key))
                self._end(one, now)
            case ipc.TransferFailed(kind=kind, message=text):
                self._lose(one, RefusalReason.TRANSFER, f"{kind}: {text}", now)
            case ipc.GrammarRefused(message=text):
                self._lose(one, RefusalReason.INVALID, text, now)
            case ipc.Ended():
                self._lose(one, RefusalReason.TRANSFER, "the engine ended it", now)
            case GivenUp(error=error):
                self._deny(one, error, now)

    def _joined(self, one: Reservation) -> None:
        assert one.handover is not None, "the engine joins only what it was told to"
        del self._by_job[one.job_id]
        self._peer_misses.pop(one.key, None)
        one.state = State.JOINED
        going_on = {first.choice for first in one.handover.first}
        self._send(one.peer, JoinConfirmed(one.key))
        self._masters.tell(one, Joined(one.key, tuple(sorted(going_on)), one.handover.cached_tokens))
        self._decoding.begin(one, one.job_id, going_on)
        for output in one.first_outputs():
            self._decoding.output(output)

    def _decoding_event(self, event: JobEvent) -> None:
        one = self._decoding.attempt(event.job_id)
        self._decoding.event(event)
        if one is not None and one.state is State.JOINED and not any(one.jobs.values()):
            one.state = State.DONE

    # --------------------------------------------------------------------------------------------------------- timers

    def tick(self, now: float) -> list[Effect]:
        """Sweep: silent masters, leases, tombstones; tell prefill workers what is held. Each second (R8)."""
        self._masters.tick(now)
        holds: dict[WorkerRef, list[AttemptKey]] = {peer: [] for peer in self._peers.present()}
        for one in list(self._of_peers()):
            if one.lease_until <= now:
                self.num_leases_expired += 1
                self._lose(one, RefusalReason.TRANSFER, "its lease ran out", now)
            else:
                holds.get(one.peer, []).append(one.key)
        for peer, keys in holds.items():
            self._send(peer, Held(keys))
        return self._take()

    def drain(self, now: float) -> list[Effect]:
        """Take nothing more; what is granted comes in, and what is in goes on (R17)."""
        self.draining = True
        self._computing.drain()
        for one in list(self._of_peers()):
            if one.state is State.ASKED:
                self._send(one.peer, Denied(one.key, RefusalReason.DRAINING))
                self._end(one, now)
        return self._take()

    # ----------------------------------------------------------------------------------------------------------- ends

    def _deny(self, one: Reservation, error: SluiceError, now: float) -> None:
        reason = RefusalReason.QUEUE_FULL if error.retryable else RefusalReason.TOO_LARGE
        self._send(one.peer, Denied(one.key, reason, error.retry_after_s, error.message))
        self._end(one, now)

    def _lose(self, one: Reservation, reason: RefusalReason, text: str, now: float) -> None:
        self._send(one.peer, HandoverFailed(one.key, reason, text))
        self._end(one, now)

    def _end_for_master(self, one: Reservation, now: float) -> None:
        if one.is_peers:
            self._send(one.peer, HandoverFailed(one.key, RefusalReason.STALE, "its master ended it"))
        self._end(one, now)

    def _end(self, one: Reservation, now: float) -> None:
        """The one way out: whatever is held is given back."""
        self._peer_misses.pop(one.key, None)
        if self._by_job.pop(one.job_id, None) is not None:
            self._emit(EndJob(one.job_id))
        self._computing.end(one)
        self._decoding.stop(one)
        self._masters.remove(one, now)

    def _of_peers(self) -> Iterator[Reservation]:
        return iter(self._by_job.values())

    def _send(
        self, worker: WorkerRef, message: Granted | Denied | Revoked | JoinConfirmed | HandoverFailed | Held
    ) -> None:
        self._emit(SendToPeer(worker, message))
