"""The prefill worker's side of the protocol: a prompt's way from the queue into a decode worker.

            Submit          engine: Admitted        token 0 of each choice      JoinConfirmed, or nothing goes on
    (nothing) ---> QUEUED -----------------> COMPUTING -----------------> COMPUTED -----------------------------> GONE
                waits in the Router     prompt in the engine      KV held for the push               only output is kept

and beside it, from the start of compute on (or before, when the Router says so, DESIGN R4):

    NOT_ASKED --Reserve--> ASKED --Granted--> GRANTED (Placed is said, KV is pushed as it is computed)
                             ^ |                 |
                    Redirect | v                 v
                             REFUSED <-----------'   Denied, Revoked, HandoverFailed, TransferFailed, peer gone

COMPUTED and GRANTED together: Handover. In REFUSED the KV stays and its master is asked for another decode worker; a
Redirect gives the attempt a new number, so that a number names one pair for ever. Anything but a definite refusal is
followed by Cancel (R5). Token 0 is shown to the client from the grant on, so that overload shows before any token (R4).
Abort, not named by its master, master silent: from any state back to nothing, with a tombstone.

Pure: messages, events and `now` in, effects out (`services.worker.protocol.effects`). The caller is the prefill
service, in the control process, on its event loop.
"""

from collections.abc import Callable, Iterator

from services.common import ipc
from services.common.errors import SluiceError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    LiveAttempt,
    MasterMessage,
    MasterRef,
    Peer,
    Placed,
    PlacementRefused,
    Prefilling,
    Queued,
    Reconcile,
    Redirect,
    RefusalReason,
    Refused,
    Submit,
    WorkerRef,
)
from services.common.messages import Peers as PeerList
from services.common.peer_messages import (
    Cancel,
    DecodeMessage,
    Denied,
    FirstToken,
    Granted,
    HandoverFailed,
    Held,
    JoinConfirmed,
    PrefillMessage,
    Revoked,
)
from services.prefill.handoff_attempt import Compute, HandoffAttempt, Placement
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent, ReserveFirst
from services.worker.protocol.attempt import OpenLog
from services.worker.protocol.effects import (
    Effect,
    EndJob,
    EngineCommand,
    JobGranted,
    SendToMaster,
    SendToPeer,
    StartJob,
    WantPeers,
)
from services.worker.protocol.masters import Masters
from services.worker.protocol.peers import Peers
from services.worker.protocol.times import Times

PEER_GRACE_S = 2.0
"""How long a decode worker may be without a session before its placements are taken for lost."""
_MISSES = 2
_TIMES = Times()


class PrefillHandoff:
    """All attempts of one prefill worker."""

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = _TIMES
    ) -> None:
        self.draining = False
        """Set by the service: nothing new is taken."""
        self._effects: list[Effect] = []
        self._open_log = open_log
        self._new_id = new_id
        self._eos_token_ids = eos_token_ids
        self._masters: Masters[HandoffAttempt] = Masters(self._effects.append, self._end, times)
        self._peers = Peers()
        self._listed: dict[str, list[Peer]] = {}
        """Master id -> decode workers it names."""
        self._by_job: dict[int, HandoffAttempt] = {}

    # --------------------------------------------------------------------------------------------------- from masters

    def master_hello(self, ref: MasterRef, session: int, live: list[LiveAttempt], now: float) -> list[Effect]:
        """A session to a master begins; `session` is a number the edge never uses twice."""
        self._masters.hello(ref, session, live, now)
        return self._take()

    def master_closed(self, ref: MasterRef, session: int, now: float) -> list[Effect]:
        """That session ended."""
        self._masters.closed(ref, session, now)
        return self._take()

    def from_master(self, ref: MasterRef, message: MasterMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        match message:
            case Submit():
                self._submit(ref, message, now)
            case Redirect():
                self._redirect(ref, message, now)
            case Abort(keys=keys):
                self._masters.abort(keys, now)
            case Reconcile(live=live):
                self._masters.reconcile(ref, live, now)
            case PeerList(peers=peers):
                self._listed[ref.master_id] = peers
                wanted = {peer.worker.worker_id: peer for listed in self._listed.values() for peer in listed}
                wanted.update({peer.worker.worker_id: peer for peer in peers})
                self._emit(WantPeers(tuple(wanted.values())))
        return self._take()

    @property
    def num_attempts(self) -> int:
        """Attempts that are known, ended but not forgotten ones included."""
        return len(self._masters.attempts)

    @property
    def num_jobs(self) -> int:
        """Jobs that Router or engine have of them."""
        return len(self._by_job)

    @property
    def num_tombstones(self) -> int:
        """Ended attempts that are remembered."""
        return len(self._masters.tombstones)

    def held(self, ref: MasterRef) -> list[AttemptKey]:
        """For the heartbeat to this master."""
        return self._masters.held(ref)

    def _submit(self, ref: MasterRef, submit: Submit, now: float) -> None:
        if self._masters.find(submit.key) is not None:
            return
        if self._masters.is_stale(submit.key):
            self._refuse(ref, submit.key, RefusalReason.STALE)
        elif self.draining:
            self._refuse(ref, submit.key, RefusalReason.DRAINING)
        elif submit.decode is None:
            self._refuse(ref, submit.key, RefusalReason.NOT_READY, "a prefill worker needs a decode worker")
        else:
            self._queue(ref, submit, submit.decode, now)

    def _refuse(self, ref: MasterRef, key: AttemptKey, reason: RefusalReason, text: str = "") -> None:
        self._emit(SendToMaster(ref, Refused(key, reason, message=text)))

    def _queue(self, ref: MasterRef, submit: Submit, decode: Peer, now: float) -> None:
        job_id = self._new_id()
        one = HandoffAttempt(
            submit.key,
            ref,
            submit.request,
            submit.choices,
            submit.output_ids,
            arrival_s=now - submit.age_s,
            decode=decode,
            job_id=job_id,
        )
        self._masters.add(one, now)
        self._by_job[job_id] = one
        self._masters.tell(one, Queued(one.key))
        self._emit(StartJob(one.work(job_id, WorkKind.PREFILL), one.admit_command(self._eos_token_ids)))

    def _redirect(self, ref: MasterRef, redirect: Redirect, now: float) -> None:
        new_key = AttemptKey(redirect.key.request_id, redirect.new_attempt)
        one = self._masters.find(redirect.key)
        if one is None or one.compute is Compute.GONE:
            if self._masters.find(new_key) is None:
                self._emit(SendToMaster(ref, Failed(new_key, FailureCause.UNKNOWN_ATTEMPT, "no KV of it is here")))
            return
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
        self._masters.rename(one, new_key, now)
        one.decode, one.placement = redirect.decode, Placement.NOT_ASKED
        self._ask(one, now)

    # ---------------------------------------------------------------------------------------------------- from decode

    def peer_hello(self, worker: WorkerRef, session: int, now: float) -> list[Effect]:
        """A session to a decode worker begins: what is unanswered is said again, what an earlier start granted is
        lost."""
        self._peers.hello(worker, session)
        for one in list(self._placed()):
            if one.decode.worker == worker:
                self._say_again(one, now)
            elif one.decode.worker.worker_id == worker.worker_id:
                self._lose(one, RefusalReason.NO_PEER, text="the decode worker has restarted")
        return self._take()

    def peer_closed(self, worker: WorkerRef, session: int) -> list[Effect]:
        """That session ended."""
        self._peers.closed(worker, session)
        return self._take()

    def from_peer(self, worker: WorkerRef, message: DecodeMessage) -> list[Effect]:
        """Anything but a hello."""
        if isinstance(message, Held):
            self._peer_holds(worker, set(message.keys))
        elif isinstance(message, Granted | Denied | Revoked | JoinConfirmed | HandoverFailed):
            one = self._masters.find(message.key)
            if one is not None and one.decode.worker == worker and one.is_waiting_for_peer:
                self._answered(one, message)
            elif isinstance(message, Granted):
                self._emit(SendToPeer(worker, Cancel(message.key)))
        return self._take()

    def _answered(
        self, one: HandoffAttempt, answer: Granted | Denied | Revoked | JoinConfirmed | HandoverFailed
    ) -> None:
        match answer:
            case Granted(cached_tokens=cached):
                self._granted(one, cached)
            case JoinConfirmed():
                self._emit(EngineCommand(ipc.Release(one.job_id)))
                self._gone(one)
            case Denied(reason=reason, retry_after_s=after, message=text):
                self._lose(one, reason, after, text)
            case HandoverFailed(reason=reason, message=text):
                self._lose(one, reason, None, text)
            case Revoked():
                self._lose(one, RefusalReason.REVOKED)

    def _granted(self, one: HandoffAttempt, cached_tokens: int) -> None:
        if one.placement is Placement.GRANTED:
            return
        one.placement, one.remote_tokens = Placement.GRANTED, cached_tokens
        one.said.pop(PlacementRefused, None)
        self._masters.tell(one, Placed(one.key, one.decode.worker))
        self._emit(JobGranted(one.job_id))
        if one.compute is not Compute.QUEUED:
            self._emit(EngineCommand(one.place_command()))
        self._proceed(one)

    def _peer_holds(self, worker: WorkerRef, keys: set[AttemptKey]) -> None:
        for one in list(self._placed()):
            if one.decode.worker != worker:
                continue
            one.peer_misses = 0 if one.key in keys else one.peer_misses + 1
            if one.peer_misses >= _MISSES:
                self._send(one, Cancel(one.key))
                self._lose(one, RefusalReason.STALE, text="the decode worker does not hold it")

    # ---------------------------------------------------------------------------------- from the Router and the engine

    def job_refused(self, job_id: int, error: SluiceError, now: float) -> list[Effect]:
        """The Router refused or gave up a job that was started."""
        return self.job_event(GivenUp(job_id, error), now)

    def job_event(self, event: JobEvent, now: float) -> list[Effect]:
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""
        one = self._by_job.get(event.job_id)
        if one is None:
            return self._take()
        match event:
            case ReserveFirst():
                self._ask_first(one, now)
            case ipc.Admitted(cached_tokens=cached):
                self._admitted(one, cached, now)
            case ipc.SequenceOutput():
                self._output(one, event)
            case ipc.TransferFailed(kind=kind, message=text):
                if one.is_waiting_for_peer:
                    self._send(one, Cancel(one.key))
                    self._lose(one, RefusalReason.TRANSFER, text=f"{kind}: {text}")
            case ipc.Ended():
                self._fail(one)
            case GivenUp(error=error):
                self._give_up(one, error)
        return self._take()

    def _ask_first(self, one: HandoffAttempt, now: float) -> None:
        if one.placement is Placement.NOT_ASKED:
            self._ask(one, now)

    def _admitted(self, one: HandoffAttempt, cached_tokens: int, now: float) -> None:
        one.compute, one.cached_tokens = Compute.COMPUTING, cached_tokens
        self._masters.tell(one, Prefilling(one.key, cached_tokens))
        if one.placement is Placement.GRANTED:
            self._emit(EngineCommand(one.place_command()))
        else:
            self._ask_first(one, now)

    def _output(self, one: HandoffAttempt, output: ipc.SequenceOutput) -> None:
        log = one.open_log(output.choice, self._open_log)
        if log.take(output) is None:
            return
        if log.finish is None:
            logprob = output.logprobs[0] if output.logprobs else None
            one.first[output.choice] = FirstToken(output.choice, output.token_ids[0], logprob)
        if len(one.logs) == len(one.choices):
            one.compute = Compute.COMPUTED
            self._proceed(one)

    def _proceed(self, one: HandoffAttempt) -> None:
        """After each step on either way: show token 0, hand over, or be done."""
        if one.compute is not Compute.COMPUTED:
            return
        if not one.first:  # every choice ended with its first token
            if one.is_waiting_for_peer:
                self._send(one, Cancel(one.key))
            self._publish(one)
            self._emit(EngineCommand(ipc.Release(one.job_id)))
            self._gone(one)
        elif one.placement is Placement.GRANTED:
            self._publish(one)
            self._send(one, one.handover())

    def _publish(self, one: HandoffAttempt) -> None:
        for choice in one.choices:
            if choice not in one.published:
                self._masters.publish(one, choice)

    # --------------------------------------------------------------------------------------------------------- timers

    def tick(self, now: float) -> list[Effect]:
        """Sweep: silent masters, absent peers, tombstones; and say to decode workers what is held. Each second (R8)."""
        self._masters.tick(now)
        holds: dict[WorkerRef, list[AttemptKey]] = {peer: [] for peer in self._peers.present()}
        for one in list(self._placed()):
            if self._peers.is_present(one.decode.worker):
                one.peer_absent_since = None
                holds[one.decode.worker].append(one.key)
            elif one.peer_absent_since is None:
                one.peer_absent_since = now
            elif now - one.peer_absent_since >= PEER_GRACE_S:
                self._lose(one, RefusalReason.NO_PEER, text="no session to the decode worker")
        for peer, keys in holds.items():
            self._emit(SendToPeer(peer, Held(keys)))
        return self._take()

    # ------------------------------------------------------------------------------------------------------ placement

    def _ask(self, one: HandoffAttempt, now: float) -> None:
        one.placement, one.peer_absent_since, one.peer_misses = Placement.ASKED, None, 0
        self._send(one, one.reserve(now))

    def _say_again(self, one: HandoffAttempt, now: float) -> None:
        one.peer_absent_since, one.peer_misses = None, 0
        if one.placement is Placement.ASKED:
            self._send(one, one.reserve(now))
        elif one.compute is Compute.COMPUTED:
            self._send(one, one.handover())

    def _lose(
        self, one: HandoffAttempt, reason: RefusalReason, retry_after_s: float | None = None, text: str = ""
    ) -> None:
        one.placement = Placement.REFUSED
        one.said.pop(Placed, None)
        self._masters.tell(one, PlacementRefused(one.key, reason, retry_after_s, text))

    def drain(self, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """Take nothing new, and give back what no decode worker has granted yet; running pushes go on (DESIGN R17)."""
        self.draining = True
        for one in list(self._by_job.values()):
            if one.placement is not Placement.GRANTED:
                self._give_back(one)
        return self._take()

    # ----------------------------------------------------------------------------------------------------------- ends

    def _give_back(self, one: HandoffAttempt) -> None:
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
        self._emit(EndJob(one.job_id))
        was_queued = one.compute is Compute.QUEUED
        self._gone(one)
        if was_queued:
            self._masters.tell(one, Refused(one.key, RefusalReason.DRAINING))
        else:
            self._masters.tell(one, Failed(one.key, FailureCause.DRAINING))

    def _give_up(self, one: HandoffAttempt, error: SluiceError) -> None:
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
        self._gone(one)
        reason = RefusalReason.QUEUE_FULL if error.retryable else RefusalReason.TOO_LARGE
        self._masters.tell(one, Refused(one.key, reason, error.retry_after_s, error.message))

    def _fail(self, one: HandoffAttempt) -> None:
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
        self._gone(one)
        self._masters.tell(one, Failed(one.key, FailureCause.ENGINE, "the engine ended a prompt that had not moved"))

    def _gone(self, one: HandoffAttempt) -> None:
        one.compute = Compute.GONE
        del self._by_job[one.job_id]

    def _end(self, one: HandoffAttempt, now: float) -> None:
        """The one way out: whatever is held is given back."""
        if one.is_waiting_for_peer:
            self._send(one, Cancel(one.key))
        if self._by_job.pop(one.job_id, None) is not None:
            self._emit(EndJob(one.job_id))
        self._masters.remove(one, now)

    def _placed(self) -> Iterator[HandoffAttempt]:
        return (one for one in self._by_job.values() if one.is_waiting_for_peer)

    def _send(self, one: HandoffAttempt, message: PrefillMessage) -> None:
        self._emit(SendToPeer(one.decode.worker, message))

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _take(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects
