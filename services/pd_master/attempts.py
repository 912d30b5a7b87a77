"""The master's side of the protocol: every request's attempts, and what its client gets of them.

An attempt goes  SENT -Queued-> QUEUED -Prefilling-> PREFILLING -Placed-> PLACED -Joined-> JOINED  on what its workers
say. It ends when all its choices have been delivered, or by any loss; and there is one answer to a loss, in every stage
and for every cause: a new attempt = the request + the output that the client has (`Recovery.retry`). A computed prompt
is kept where a decode worker refuses or is lost before it joined: a Redirect names another one (`Recovery.redirect`).

What the master believes of a worker is named to it at each hello and each second; what the worker's heartbeats leave
out twice is lost (R7, R8). Abort also says thanks: whoever holds output of an attempt keeps it until the master
has it all.

Pure: messages and `now` in, effects out (`services.pd_master.effects`). The caller is the dispatcher, on the event loop
of the master process.
"""

from services.common.errors import ContextLengthError, DeadlineError, InvalidRequestError, SluiceError
from services.common.messages import (
    Abort,
    AttemptDelta,
    AttemptEvent,
    Deltas,
    Failed,
    FailureCause,
    Heartbeat,
    Joined,
    Placed,
    PlacementRefused,
    Prefilling,
    PromptScored,
    Queued,
    Reconcile,
    RefusalReason,
    Refused,
    WorkerMessage,
    WorkerRef,
)
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Request
from services.pd_master.attempt_index import AttemptIndex
from services.pd_master.delivery import Choice, Fault
from services.pd_master.effects import Cached, Deliver, Effect, End, Scored, Send
from services.pd_master.inflight import Branch, Chooser, Inflight, MasterAttempt, Stage
from services.pd_master.moves import Moves
from services.pd_master.pair_faults import PairFaults
from services.pd_master.pending_load import PendingLoad
from services.pd_master.recovery import (
    MAX_ATTEMPTS,
    BudgetDue,
    DeadlineDue,
    Due,
    Recovery,
    RedirectDue,
    RetryDue,
    overloaded,
)
from services.pd_master.timers import Timers

_MISSES = 2
"""Heartbeats that may leave out an attempt before it is lost (R8)."""
_MISSES_UNHEARD = 10
"""The same before the worker has said anything of it: in a burst its Submit waits in the stream behind others, and a
second attempt would only lengthen the queue. One that was lost with its session is named, unknown, by the next one."""
_TIMERS_A_REQUEST, _SPARE_TIMERS = 4, 4096
"""Requests end long before their deadlines: beyond so many timers most are of requests that are over."""
HANDOVER_LEAD_S = 10.0
"""So long before a draining worker ends, its sequences start to move, spread over the time that is left (R17)."""


class Attempts:
    """All requests of one master, and where they are."""

    def __init__(
        self,
        chooser: Chooser,
        pending: PendingLoad,
        max_attempts: int = MAX_ATTEMPTS,
        faults: PairFaults | None = None,
    ) -> None:
        self._pending = pending
        self._faults = PairFaults() if faults is None else faults
        self._effects: list[Effect] = []
        self._timers: Timers[Due] = Timers()
        self._index = AttemptIndex(pending)
        self._recovery = Recovery(chooser, self._index, self._timers, self._emit, max_attempts)
        self._moves = Moves(self._index, self._recovery)
        self._inflights: dict[str, Inflight] = {}

    def __len__(self) -> int:
        return len(self._inflights)

    @property
    def num_timers(self) -> int:
        """Points in time that are waited for."""
        return len(self._timers)

    @property
    def num_attempts(self) -> int:
        """Attempts that are believed in."""
        return len(self._index)

    # --------------------------------------------------------------------------------------------------- from clients

    def submit(self, request: Request, now: float) -> list[Effect]:
        """Start a request. Raises NoWorkerError, OverloadedError, ContextLengthError, and then knows nothing of it."""
        inflight = Inflight(request, now)
        choices = {index: Choice(index) for index in range(request.num_choices)}
        branch = Branch(inflight, request.request_id, choices)
        pair = self._recovery.choose(branch)
        inflight.branches.append(branch)
        self._inflights[request.request_id] = inflight
        self._timers.add(now + request.deadline_s, DeadlineDue(request.request_id))
        self._timers.add(now + request.queue_budget_s, BudgetDue(request.request_id))
        self._recovery.start(branch, pair, now)
        if len(self._timers) > _TIMERS_A_REQUEST * len(self._inflights) + _SPARE_TIMERS:
            self._timers.keep(self._still_matters)
        return self._take()

    def _still_matters(self, due: Due) -> bool:
        return not isinstance(due, DeadlineDue | BudgetDue) or due.request_id in self._inflights

    def abort(self, request_id: str) -> list[Effect]:
        """The client is gone: end all that is left of its request. Unknown ids are ignored."""
        inflight = self._inflights.pop(request_id, None)
        if inflight is not None:
            self._recovery.close(inflight)
        return self._take()

    # --------------------------------------------------------------------------------------------------- from workers

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """What the worker is told each second; its `live` also goes into a hello."""
        return self._index.reconcile(worker)

    def worker_lost(self, worker: WorkerRef, now: float, *, crashed: bool) -> list[Effect]:
        """This start of a worker is gone, or has forgotten this master's attempts."""
        for attempt in list(self._index.on(worker).values()):
            if worker == attempt.decode and attempt.stage < Stage.JOINED:
                self._decode_lost(attempt, worker, now)
            else:
                crash = worker if crashed and attempt.was_inside(worker) else None
                self._recovery.lost(attempt, now, exclude=worker, crash=crash)
        return self._take()

    def worker_stalled(self, worker: WorkerRef, now: float) -> list[Effect]:
        """Its engine stands still, as it says itself each second; it may come to itself."""
        self._moves.leave_stalled(worker, now)
        return self._take()

    def from_worker(self, worker: WorkerRef, message: WorkerMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        if isinstance(message, Deltas):
            for one in message.deltas:
                self._delta(worker, one, now)
        elif isinstance(message, Heartbeat):
            self._heartbeat(worker, message, now)
        elif not isinstance(message, AttemptEvent):
            raise TypeError(f"{type(message).__name__} is no message of a session under way")
        else:
            attempt = self._index.find(message.key, worker)
            if attempt is not None:
                self._event(attempt, worker, message, now)
        return self._take()

    # --------------------------------------------------------------------------------------------------------- output

    def _delta(self, worker: WorkerRef, one: AttemptDelta, now: float) -> None:
        attempt = self._index.find(one.key, worker)
        choice = None if attempt is None else attempt.branch.choices.get(one.delta.choice)
        if attempt is None or choice is None:
            return
        if attempt.branch.inflight.waits_for_scores:
            attempt.held_back.append((worker, one))
            return
        new = choice.take(one.delta)
        if isinstance(new, Fault):
            self._recovery.lost(attempt, now)
            return
        branch = attempt.branch
        if branch.previous is not None and attempt is branch.current and worker == (attempt.decode or worker):
            self._recovery.drop(branch.previous)
            branch.previous = None
        if new is None:
            return
        self._effects.append(Deliver(branch.inflight.request.request_id, new))
        if new.finish is not None:
            self._choice_finished(attempt)

    def _choice_finished(self, attempt: MasterAttempt) -> None:
        branch = attempt.branch
        if branch.unfinished():
            self._release_prefill(attempt)
            return
        self._recovery.close_branch(branch)
        inflight = branch.inflight
        if not any(one.unfinished() for one in inflight.branches):
            inflight.is_over = True
            self._emit(End(inflight.request.request_id))

    def _scored(self, attempt: MasterAttempt, logprobs: PromptLogprobs, now: float) -> None:
        """What came before them is delivered behind them. The prefill worker was kept for them."""
        branch, inflight = attempt.branch, attempt.branch.inflight
        if not inflight.waits_for_scores:
            return
        inflight.waits_for_scores = False
        self._emit(Scored(inflight.request.request_id, logprobs))
        attempts = [one for one in (branch.previous, branch.current) if one is not None]
        for worker, delta in [held for one in attempts for held in one.held_back]:
            self._delta(worker, delta, now)
        self._release_prefill(attempt)

    def _release_prefill(self, attempt: MasterAttempt) -> None:
        """Once joined, the prefill worker is needed only for the prompt's log-probabilities and for choices that ended
        with their first token, until they are here."""
        if attempt.branch.inflight.waits_for_scores:
            return
        on_prefill = [one.index for one in attempt.branch.unfinished() if one.index not in attempt.joined_choices]
        if attempt.stage is Stage.JOINED and not attempt.is_prefill_done and not on_prefill:
            self._index.prefill_done(attempt)
            self._emit(Send(attempt.pair.prefill, Abort([attempt.key])))

    # --------------------------------------------------------------------------------------------------------- events

    def _event(self, attempt: MasterAttempt, worker: WorkerRef, event: AttemptEvent, now: float) -> None:
        match event:
            case Queued():
                self._index.reached(attempt, Stage.QUEUED)
            case Prefilling(cached_tokens=cached):
                self._index.reached(attempt, Stage.PREFILLING)
                self._cached(attempt, cached)
            case PromptScored(logprobs=logprobs):
                self._scored(attempt, logprobs, now)
            case Placed(decode=decode) if decode == attempt.decode:
                self._index.reached(attempt, Stage.PLACED)
            case Joined(choices=choices, cached_tokens=cached):
                self._index.reached(attempt, Stage.JOINED)
                attempt.joined_choices = frozenset(choices)
                self._faults.joined(attempt.pair.prefill, worker)
                self._cached(attempt, cached)
                self._release_prefill(attempt)
            case PlacementRefused(reason=RefusalReason.INVALID) | Refused(reason=RefusalReason.INVALID):
                self._recovery.fail(attempt.branch.inflight, _invalid(attempt, event.message))
            case PlacementRefused():
                self._placement_refused(attempt, event, now)
            case Refused():
                self._refused(attempt, worker, event, now)
            case Failed():
                self._failed(attempt, worker, event, now)

    def _cached(self, attempt: MasterAttempt, num_tokens: int) -> None:
        inflight = attempt.branch.inflight
        if not inflight.has_cached_tokens:
            inflight.has_cached_tokens = True
            self._emit(Cached(inflight.request.request_id, num_tokens))

    def _placement_refused(self, attempt: MasterAttempt, event: PlacementRefused, now: float) -> None:
        if attempt.stage is Stage.JOINED:  # it did join: the decode worker's word is the newer one
            return
        if attempt.decode is not None:
            self._faults.refused(attempt.pair.prefill, attempt.decode, event.reason, now)
        error = self._shed(attempt, event)
        if attempt is attempt.branch.current and attempt.branch.previous is None:
            self._recovery.redirect(attempt, now, attempt.decode, error)
        else:
            self._recovery.lost(attempt, now, exclude=attempt.decode)

    def _refused(self, attempt: MasterAttempt, worker: WorkerRef, event: Refused, now: float) -> None:
        error = self._shed(attempt, event)
        exclude = None if event.reason is RefusalReason.STALE else worker
        self._recovery.lost(attempt, now, exclude=exclude, shed=error)

    @staticmethod
    def _shed(attempt: MasterAttempt, event: Refused | PlacementRefused) -> SluiceError | None:
        """What the client hears if nobody else takes it; None where load and size are not the reason."""
        if event.reason is RefusalReason.TOO_LARGE:
            return ContextLengthError(event.message or "the request fits no worker's KV pool", param="max_tokens")
        if event.reason is not RefusalReason.QUEUE_FULL:
            return None
        attempt.branch.num_attempts -= 1  # it was not tried
        return overloaded(event.message, event.retry_after_s)

    def _failed(self, attempt: MasterAttempt, worker: WorkerRef, event: Failed, now: float) -> None:
        unknown = event.cause is FailureCause.UNKNOWN_ATTEMPT
        if unknown and worker == attempt.decode and attempt.stage < Stage.PLACED:
            return  # the reservation has not come there yet
        if unknown and self._may_be_done(attempt, worker):
            self._index.prefill_done(attempt)  # it may have joined: the decode worker knows
            return
        crash = f"{attempt.key}" if event.cause is FailureCause.ENGINE else None
        self._recovery.lost(attempt, now, exclude=None if unknown else worker, crash=crash)

    def _decode_lost(self, attempt: MasterAttempt, worker: WorkerRef, now: float) -> None:
        if attempt is attempt.branch.current and attempt.branch.previous is None and not attempt.is_prefill_done:
            self._recovery.redirect(attempt, now, worker)
        else:
            self._recovery.lost(attempt, now, exclude=worker)

    # ----------------------------------------------------------------------------------------------------- heartbeats

    def _heartbeat(self, worker: WorkerRef, heartbeat: Heartbeat, now: float) -> None:
        held, load = set(heartbeat.held), heartbeat.load
        believed = self._index.on(worker)
        num_own = sum(len(attempt.branch.choices) for key, attempt in believed.items() if key in held)
        self._pending.heartbeat(worker, num_own, load.queued_requests + load.running_requests)
        unknown = [key for key in heartbeat.held if key not in believed]
        if unknown:
            self._emit(Send(worker, Abort(unknown)))
        for attempt in list(believed.values()):
            if attempt.key in held or (worker == attempt.decode and attempt.stage < Stage.PLACED):
                attempt.misses.pop(worker, None)
            else:
                self._missed(attempt, worker, now)
        if heartbeat.draining and heartbeat.drain_left_s < HANDOVER_LEAD_S:
            self._moves.hand_over(worker, heartbeat.drain_left_s, now)

    def _missed(self, attempt: MasterAttempt, worker: WorkerRef, now: float) -> None:
        misses = attempt.misses[worker] = attempt.misses.get(worker, 0) + 1
        if misses < (_MISSES_UNHEARD if attempt.stage is Stage.SENT else _MISSES):
            return
        if self._may_be_done(attempt, worker):
            self._index.prefill_done(attempt)
        else:
            self._recovery.lost(attempt, now)

    @staticmethod
    def _may_be_done(attempt: MasterAttempt, worker: WorkerRef) -> bool:
        """Whether all that a worker has forgotten may live on elsewhere: a prompt that has moved."""
        has_moved = worker == attempt.pair.prefill and attempt.stage >= Stage.PLACED
        return has_moved and not attempt.branch.inflight.waits_for_scores

    # --------------------------------------------------------------------------------------------------------- timers

    @property
    def next_timer_s(self) -> float | None:
        """When `tick` has something to do next."""
        return self._timers.next_s

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        for due in self._timers.pop_due(now):
            match due:
                case RetryDue(branch=branch):
                    self._recovery.retry(branch, now)
                case RedirectDue(attempt=attempt):
                    if attempt is attempt.branch.current and attempt.waits_for_redirect:
                        self._recovery.redirect(attempt, now)
                case DeadlineDue(request_id=request_id):
                    self._deadline(request_id)
                case BudgetDue(request_id=request_id):
                    self._budget(request_id)
        return self._take()

    def _deadline(self, request_id: str) -> None:
        inflight = self._inflights.get(request_id)
        if inflight is not None:
            limit_s = inflight.request.deadline_s
            self._recovery.fail(inflight, DeadlineError(f"the request's deadline of {limit_s:g} s has passed"))

    def _budget(self, request_id: str) -> None:
        """The prompt has waited for compute long enough; a wait for a decode worker ends by that one's Router."""
        inflight = self._inflights.get(request_id)
        if inflight is None or inflight.num_delivered:
            return
        budget_s = inflight.request.queue_budget_s
        attempt = inflight.branches[0].current
        if attempt is None or attempt.stage < Stage.PREFILLING:
            self._recovery.fail(inflight, overloaded(f"no place was found within {budget_s:g} s", None))

    # ------------------------------------------------------------------------------------------------------- plumbing

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)
        if isinstance(effect, End):
            inflight = self._inflights.pop(effect.request_id, None)
            if inflight is not None:
                inflight.branches.clear()

    def _take(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects


def _invalid(attempt: MasterAttempt, why: str) -> InvalidRequestError:
    """No worker would do better: what a grammar's source says is wrong for all."""
    grammar = attempt.branch.inflight.request.sampling.grammar
    field = grammar.field if grammar is not None else ""
    return InvalidRequestError(f"{field}: {why}" if field else why, param=field or None)
