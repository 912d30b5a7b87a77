"""The prefill worker's side of the protocol: a prompt's way from the queue into a decode worker.

            Submit          engine: Admitted        token 0 of each choice      JoinConfirmed, or nothing goes on
    (nothing) ---> QUEUED -----------------> COMPUTING -----------------> COMPUTED -----------------------------> GONE
                waits in the Router     prompt in the engine      KV held for the push               only output is kept

and beside it, from the start of compute on (or before, when the Router says so, R4), the way of the other half
in `placements`. COMPUTED here and GRANTED there together: Handover. Token 0 is shown to the client from the grant on,
so that overload shows before any token (R4). A Redirect gives the attempt a new number, so that a number names one pair
for ever. Abort, not named by its master, master silent: from any state back to nothing, with a tombstone.

Pure: messages, events and `now` in, effects out (`services.worker.protocol.effects`). The caller is the prefill
service, in the control process, on its event loop.
"""

from collections.abc import Callable

from services.common import ipc
from services.common.errors import SluiceError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    MasterMessage,
    MasterRef,
    Peer,
    Placed,
    PlacementRefused,
    Prefilling,
    PromptScored,
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
    Revoked,
)
from services.prefill.handoff_attempt import Compute, HandoffAttempt, Placement
from services.prefill.placements import Placements
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent, PromptPart, ReserveFirst
from services.worker.protocol.attempt import OpenLog
from services.worker.protocol.core import DEFAULT_TIMES, ProtocolCore
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
from services.worker.protocol.times import Times


class PrefillHandoff(ProtocolCore[HandoffAttempt]):
    """All attempts of one prefill worker."""

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = DEFAULT_TIMES
    ) -> None:
        super().__init__(open_log, new_id, eos_token_ids, times)
        self._by_job: dict[int, HandoffAttempt] = {}
        """Those whose KV is here, or will be."""
        self._placements = Placements(self._by_job, self._masters, self._emit)
        self._listed: dict[MasterRef, list[Peer]] = {}
        """Decode workers that each master names."""

    @property
    def num_jobs(self) -> int:
        """Jobs that Router or engine have of them."""
        return len(self._by_job)

    # --------------------------------------------------------------------------------------------------- from masters

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
                self._listed.pop(ref, None)
                self._listed[ref] = peers
                self._want_listed()
        return self._take()

    def _want_listed(self) -> None:
        """Where masters name different starts of one worker, the latest word counts."""
        wanted = {peer.worker.worker_id: peer for listed in self._listed.values() for peer in listed}
        self._emit(WantPeers(tuple(wanted.values())))

    def _submit(self, ref: MasterRef, submit: Submit, now: float) -> None:
        if not self._is_new(ref, submit):
            return
        if submit.decode is None:
            self._refuse(ref, submit.key, RefusalReason.NOT_READY, "a prefill worker needs a decode worker")
        else:
            self._queue(ref, submit, submit.decode, now)

    def _queue(self, ref: MasterRef, submit: Submit, decode: Peer, now: float) -> None:
        job_id = self._new_id()
        one = HandoffAttempt.of_submit(ref, submit, now, decode=decode, job_id=job_id)
        self._masters.add(one, now)
        self._by_job[job_id] = one
        self._masters.tell(one, Queued(one.key))
        admit = one.admit(job_id, self._eos_token_ids, hand_over=True)
        self._emit(StartJob(one.work(job_id, WorkKind.PREFILL), admit, one.request.traceparent))

    def _redirect(self, ref: MasterRef, redirect: Redirect, now: float) -> None:
        new_key = AttemptKey(redirect.key.request_id, redirect.new_attempt)
        one = self._masters.find(redirect.key)
        if one is None or one.compute is Compute.GONE:
            if self._masters.find(new_key) is None:
                self._emit(SendToMaster(ref, Failed(new_key, FailureCause.UNKNOWN_ATTEMPT, "no KV of it is here")))
            return
        self._placements.withdraw(one)
        self._masters.rename(one, new_key, now)
        is_early = one.compute is Compute.QUEUED and one.placement is Placement.NOT_ASKED
        one.decode, one.placement = redirect.decode, Placement.NOT_ASKED
        if not is_early:  # the Router has not kept room for it yet
            self._placements.ask(one, now)

    # ---------------------------------------------------------------------------------------------------- from decode

    def peer_hello(self, worker: WorkerRef, session: int, now: float) -> list[Effect]:
        """A session to a decode worker begins; `session` is a number the edge never uses twice."""
        self._placements.hello(worker, session, now)
        return self._take()

    def peer_closed(self, worker: WorkerRef, session: int) -> list[Effect]:
        """That session ended."""
        self._placements.closed(worker, session)
        return self._take()

    def from_peer(self, worker: WorkerRef, message: DecodeMessage) -> list[Effect]:
        """Anything but a hello."""
        if isinstance(message, Held):
            self._placements.held(worker, set(message.keys))
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
                self._placements.lose(one, reason, after, text)
            case HandoverFailed(reason=reason, message=text):
                self._placements.lose(one, reason, None, text)
            case Revoked():
                self._placements.lose(one, RefusalReason.REVOKED)

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

    # ---------------------------------------------------------------------------------- from the Router and the engine

    def job_event(self, event: JobEvent, now: float) -> list[Effect]:
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""
        one = self._by_job.get(event.job_id)
        if one is None:
            return self._take()
        match event:
            case ReserveFirst():
                self._placements.ask(one, now)
            case ipc.Admitted(cached_tokens=cached):
                self._admitted(one, cached, now)
            case PromptPart(logprobs=logprobs) if one.scores is not None:
                one.scores.take(logprobs)
            case ipc.SequenceOutput():
                self._output(one, event)
            case ipc.TransferFailed(kind=kind, message=text):
                self._placements.transfer_failed(one, f"{kind}: {text}")
            case ipc.GrammarRefused(message=text):
                self._invalid(one, text)
            case ipc.Ended():
                self._fail(one)
            case GivenUp(error=error):
                self._give_up(one, error)
        return self._take()

    def _admitted(self, one: HandoffAttempt, cached_tokens: int, now: float) -> None:
        one.compute, one.cached_tokens = Compute.COMPUTING, cached_tokens
        self._masters.tell(one, Prefilling(one.key, cached_tokens))
        if one.placement is Placement.GRANTED:
            self._emit(EngineCommand(one.place_command()))
        else:
            self._placements.ask(one, now)

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
            self._placements.withdraw(one)
            self._publish(one)
            self._emit(EngineCommand(ipc.Release(one.job_id)))
            self._gone(one)
        elif one.placement is Placement.GRANTED:
            self._publish(one)
            self._placements.hand_over(one)

    def _publish(self, one: HandoffAttempt) -> None:
        if one.scores is not None and not one.published:
            self._masters.tell(one, PromptScored(one.key, one.scores.whole()))
        for choice in one.choices:
            if choice not in one.published:
                self._masters.publish(one, choice)

    # --------------------------------------------------------------------------------------------------------- timers

    def tick(self, now: float) -> list[Effect]:
        """Sweep: silent masters, absent peers, tombstones; and say to decode workers what is held. Each second (R8)."""
        self._masters.tick(now)
        gone = [ref for ref in self._listed if not self._masters.knows(ref)]
        for ref in gone:
            del self._listed[ref]
        if gone and self._listed:  # with no master left, peers stay until one comes and says otherwise
            self._want_listed()
        self._placements.tick(now)
        return self._take()

    def drain(self, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """Take nothing new, and give back what no decode worker has granted yet; running pushes go on (R17)."""
        self.draining = True
        for one in list(self._by_job.values()):
            if one.placement is not Placement.GRANTED:
                self._give_back(one)
        return self._take()

    # ----------------------------------------------------------------------------------------------------------- ends

    def _give_back(self, one: HandoffAttempt) -> None:
        self._placements.withdraw(one)
        self._emit(EndJob(one.job_id))
        was_queued = one.compute is Compute.QUEUED
        self._gone(one)
        if was_queued:
            self._masters.tell(one, Refused(one.key, RefusalReason.DRAINING))
        else:
            self._masters.tell(one, Failed(one.key, FailureCause.DRAINING))

    def _give_up(self, one: HandoffAttempt, error: SluiceError) -> None:
        self._placements.withdraw(one)
        self._gone(one)
        reason = RefusalReason.QUEUE_FULL if error.retryable else RefusalReason.TOO_LARGE
        self._masters.tell(one, Refused(one.key, reason, error.retry_after_s, error.message))

    def _invalid(self, one: HandoffAttempt, why: str) -> None:
        self._placements.withdraw(one)
        self._gone(one)
        self._masters.tell(one, Refused(one.key, RefusalReason.INVALID, message=why))

    def _fail(self, one: HandoffAttempt) -> None:
        self._placements.withdraw(one)
        self._gone(one)
        self._masters.tell(one, Failed(one.key, FailureCause.ENGINE, "the engine ended a prompt that had not moved"))

    def _gone(self, one: HandoffAttempt) -> None:
        one.compute = Compute.GONE
        del self._by_job[one.job_id]

    def _end_for_master(self, one: HandoffAttempt, now: float) -> None:
        """The one way out: whatever is held is given back."""
        self._placements.withdraw(one)
        if self._by_job.pop(one.job_id, None) is not None:
            self._emit(EndJob(one.job_id))
        self._masters.remove(one, now)
