"""The master's core, rule by rule: what it says to whom when a worker says this or is lost."""

from typing import TypeVar

import pytest

from services.common.errors import DeadlineError, NoWorkerError, OverloadedError, SluiceError, WorkerFailedError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    AttemptDelta,
    AttemptEvent,
    Deltas,
    Failed,
    FailureCause,
    Heartbeat,
    Joined,
    Load,
    Peer,
    Placed,
    PlacementRefused,
    Prefilling,
    Queued,
    Redirect,
    RefusalReason,
    Refused,
    Submit,
    WorkerRef,
)
from services.common.request import Delta, Finish, FinishReason, Request, SamplingParams, StopParams
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Cached, Deliver, Effect, End, Send
from services.pd_master.inflight import Pair
from services.pd_master.pending_load import PendingLoad

P0, P1, D0, D1 = (WorkerRef(name, "1") for name in ("p0", "p1", "d0", "d1"))
K1, K2 = AttemptKey("r", 1), AttemptKey("r", 2)
M = TypeVar("M")
SUBMIT_ORDER = ((P0, D0), (P1, D1), (P0, D1), (P1, D0))


class InOrder:
    """The first pair of a fixed order that is not excluded."""

    def __init__(self) -> None:
        self.nobody = False

    def pair(self, request: Request, excluded: frozenset[WorkerRef]) -> Pair:
        for prefill, decode in SUBMIT_ORDER:
            if not self.nobody and not excluded & {prefill, decode}:
                return Pair(prefill, Peer(decode, "d:1"))
        raise NoWorkerError(f"nobody for {request.model}")

    def decode(self, request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef]) -> Peer:
        for decode in (D0, D1):
            if not self.nobody and decode not in excluded:
                return Peer(decode, "d:1")
        raise NoWorkerError(f"no decode worker for {request.model} on {prefill}")


class Bench:
    """A core with one request in it, and all it said."""

    def __init__(self, num_choices: int = 1, queue_budget_s: float = 60.0, deadline_s: float = 600.0) -> None:
        self.chooser = InOrder()
        self.core = Attempts(self.chooser, PendingLoad())
        self.said: list[Effect] = []
        stop = StopParams(10)
        self.request = Request(
            "r",
            "m",
            [1, 2],
            SamplingParams(),
            stop,
            num_choices=num_choices,
            queue_budget_s=queue_budget_s,
            deadline_s=deadline_s,
        )
        self.said += self.core.submit(self.request, 0.0)

    def heard(self, worker: WorkerRef, *events: AttemptEvent, now: float = 1.0) -> None:
        """Events of an attempt."""
        for event in events:
            self.said += self.core.from_worker(worker, event, now)

    def output(self, worker: WorkerRef, key: AttemptKey, delta: Delta, now: float = 1.0) -> None:
        """New tokens."""
        self.said += self.core.from_worker(worker, Deltas([AttemptDelta(key, delta)]), now)

    def beat(self, worker: WorkerRef, *held: AttemptKey, drain_left_s: float | None = None) -> None:
        """A heartbeat."""
        draining = drain_left_s is not None
        beat = Heartbeat(Load(), 0.0, True, draining, [], list(held), drain_left_s or 0.0)
        self.said += self.core.from_worker(worker, beat, 1.0)

    def decoding(self, key: AttemptKey = K1, pair: tuple[WorkerRef, WorkerRef] = (P0, D0)) -> None:
        """The attempt goes all the way."""
        prefill, decode = pair
        choices = tuple(range(self.request.num_choices))
        self.heard(prefill, Queued(key), Prefilling(key, 1), Placed(key, decode))
        self.heard(decode, Joined(key, choices, 1))

    def take(self, kind: type[M], worker: WorkerRef | None = None) -> list[M]:
        """What was said of one kind since the last call of any kind, to one worker or to anybody."""
        said = [one for one in self.said if isinstance(one, Send) and worker in {None, one.worker}]
        found: list[M] = [one.message for one in said if isinstance(one.message, kind)]
        self.said = [one for one in self.said if not (isinstance(one, Send) and isinstance(one.message, kind))]
        return found

    @property
    def delivered(self) -> list[int]:
        """Tokens the client got."""
        return [token for one in self.said if isinstance(one, Deliver) for token in one.delta.token_ids]

    @property
    def end(self) -> End | None:
        """How the request ended."""
        return next((one for one in self.said if isinstance(one, End)), None)

    def failed_with(self, kind: type[SluiceError]) -> bool:
        """Whether it ended with such an error, and nothing of it is left."""
        return self.end is not None and isinstance(self.end.error, kind) and not self.core.num_attempts


def tokens(first: int, count: int, *, finish: bool = False, choice: int = 0) -> Delta:
    """Tokens [first, first + count) of one fixed output."""
    ids = list(range(first, first + count))
    end = Finish(FinishReason.LENGTH, first + count) if finish else None
    return Delta(choice, first, ids, "x" * count, None, end, (1,) * count)


def test_complete_request_thanks_both_workers_and_leaves_nothing() -> None:
    bench = Bench()
    bench.decoding()
    bench.output(D0, K1, tokens(0, 10, finish=True))
    assert bench.delivered == list(range(10))
    assert bench.end == End("r")
    assert (len(bench.core), bench.core.num_attempts) == (0, 0)
    assert bench.take(Abort, D0) == [Abort([K1])]


def test_prefill_worker_is_released_once_joined() -> None:
    bench = Bench()
    bench.decoding()
    assert bench.take(Abort, P0) == [Abort([K1])]
    assert bench.core.reconcile(P0).live == []


def test_prefill_worker_is_kept_while_a_choice_that_ended_there_is_missing() -> None:
    bench = Bench(num_choices=2)
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.heard(D0, Joined(K1, (1,), 0))
    assert bench.take(Abort, P0) == []
    bench.output(P0, K1, tokens(0, 1, finish=True))
    assert bench.take(Abort, P0) == [Abort([K1])]


def test_cached_tokens_are_the_first_prefills_and_told_once() -> None:
    bench = Bench()
    bench.decoding()
    assert [one for one in bench.said if isinstance(one, Cached)] == [Cached("r", 1)]


@pytest.mark.parametrize("lost", [P0, D0])
def test_new_attempt_goes_on_where_the_client_is(lost: WorkerRef) -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.output(P0, K1, tokens(0, 1))
    if lost is D0:
        bench.heard(D0, Joined(K1, (0,), 0))
        bench.output(D0, K1, tokens(0, 4))
    bench.take(Submit)
    bench.said += bench.core.worker_lost(lost, 2.0, crashed=True)
    (submit,) = bench.take(Submit, P1)
    assert submit.key == K2
    assert submit.output_ids == list(range(4 if lost is D0 else 1))
    bench.decoding(K2, (P1, D1))
    bench.output(D1, K2, tokens(len(submit.output_ids), 10 - len(submit.output_ids), finish=True))
    assert bench.delivered == list(range(10))
    assert bench.end == End("r")


def test_output_of_an_attempt_that_was_given_up_is_dropped() -> None:
    bench = Bench()
    bench.decoding()
    bench.said += bench.core.worker_lost(D0, 2.0, crashed=False)
    bench.output(D0, K1, tokens(0, 3))
    assert bench.delivered == []


def test_second_crash_fails_the_request_and_a_third_engine_never_sees_it() -> None:
    bench = Bench()
    bench.decoding()
    bench.said += bench.core.worker_lost(D0, 2.0, crashed=True)
    bench.decoding(K2, (P1, D1))
    bench.take(Submit)
    bench.said += bench.core.worker_lost(D1, 3.0, crashed=True)
    assert bench.failed_with(WorkerFailedError)
    assert bench.take(Submit) == []


def test_worker_that_was_lost_without_a_crash_does_not_count_against_the_request() -> None:
    bench = Bench()
    for number in range(1, 6):
        key, pair = AttemptKey("r", number), SUBMIT_ORDER[0] if number == 1 else SUBMIT_ORDER[1]
        bench.decoding(key, pair)
        bench.said += bench.core.worker_lost(pair[1], float(number), crashed=False)
        bench.said += bench.core.tick(number + 0.5)
    assert bench.end is None


def test_each_unfinished_choice_goes_on_alone_once_output_was_delivered() -> None:
    bench = Bench(num_choices=3)
    bench.decoding()
    bench.output(D0, K1, tokens(0, 2, choice=0, finish=True))
    bench.output(D0, K1, tokens(0, 1, choice=1))
    bench.take(Submit)
    bench.said += bench.core.worker_lost(D0, 2.0, crashed=True)
    submits = bench.take(Submit)
    assert [(one.key, one.choices, one.output_ids) for one in submits] == [
        (AttemptKey("r.1", 1), (1,), [0]),
        (AttemptKey("r.2", 1), (2,), []),
    ]


def test_refused_placement_keeps_the_prompt_and_names_another_decode_worker() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), PlacementRefused(K1, RefusalReason.REVOKED))
    assert bench.take(Redirect, P0) == [Redirect(K1, 2, Peer(D1, "d:1"))]
    assert bench.take(Abort, D0) == [Abort([K1])]


def test_decode_worker_lost_before_it_joined_costs_no_second_prefill() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.take(Submit)
    bench.said += bench.core.worker_lost(D0, 2.0, crashed=True)
    assert bench.take(Redirect, P0) == [Redirect(K1, 2, Peer(D1, "d:1"))]
    assert bench.take(Submit) == []


def test_refused_placement_after_joining_changes_nothing() -> None:
    bench = Bench()
    bench.decoding()
    bench.heard(P0, PlacementRefused(K1, RefusalReason.NO_PEER))
    assert bench.take(Redirect) == []


def test_full_queue_is_tried_elsewhere_then_told_with_its_retry_after() -> None:
    bench = Bench()
    bench.heard(P0, Refused(K1, RefusalReason.QUEUE_FULL, 3.0, "full"))
    assert [one.key for one in bench.take(Submit, P1)] == [K2]
    bench.heard(P1, Refused(K2, RefusalReason.QUEUE_FULL, 4.0, "full"))
    assert bench.failed_with(OverloadedError)
    assert bench.end is not None
    assert bench.end.error is not None
    assert bench.end.error.retry_after_s == 4.0


def test_full_decode_workers_are_overload_only_before_the_first_token() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), PlacementRefused(K1, RefusalReason.QUEUE_FULL, 2.0))
    bench.heard(P0, PlacementRefused(K2, RefusalReason.QUEUE_FULL, 2.0))
    assert bench.failed_with(OverloadedError)


def test_no_worker_is_said_at_once_and_nothing_is_kept() -> None:
    core = Attempts(chooser := InOrder(), PendingLoad())
    chooser.nobody = True
    with pytest.raises(NoWorkerError):
        core.submit(Request("r", "m", [1], SamplingParams(), StopParams(1)), 0.0)
    assert (len(core), core.next_timer_s) == (0, None)


def test_running_request_waits_a_little_for_a_worker_then_fails() -> None:
    bench = Bench()
    bench.decoding()
    bench.output(D0, K1, tokens(0, 2))
    bench.chooser.nobody = True
    bench.said += bench.core.worker_lost(D0, 2.0, crashed=True)
    for quarter in range(8, 40):
        bench.said += bench.core.tick(quarter / 4)
    assert bench.failed_with(WorkerFailedError)


def test_deadline_ends_the_request_on_both_workers() -> None:
    bench = Bench(deadline_s=5.0)
    bench.decoding()
    bench.take(Abort)
    bench.said += bench.core.tick(5.0)
    assert bench.failed_with(DeadlineError)
    assert bench.take(Abort, D0) == [Abort([K1])]


def test_queue_budget_is_overload_while_nothing_was_computed() -> None:
    bench = Bench(queue_budget_s=2.0)
    bench.heard(P0, Queued(K1))
    bench.said += bench.core.tick(2.0)
    assert bench.failed_with(OverloadedError)


def test_queue_budget_leaves_placed_requests_alone() -> None:
    bench = Bench(queue_budget_s=2.0)
    bench.decoding()
    bench.said += bench.core.tick(2.0)
    assert bench.end is None


def test_client_that_goes_ends_both_halves_and_hears_nothing_more() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.said += bench.core.abort("r")
    assert bench.take(Abort, P0) == [Abort([K1])]
    bench.output(P0, K1, tokens(0, 1))
    assert (bench.delivered, bench.end, len(bench.core)) == ([], None, 0)


def test_attempt_left_out_of_two_heartbeats_is_tried_anew() -> None:
    bench = Bench()
    bench.decoding()
    bench.take(Submit)
    bench.beat(D0)
    assert bench.take(Submit) == []
    bench.beat(D0, K1)
    bench.beat(D0)
    assert bench.take(Submit) == []
    bench.beat(D0)
    assert [one.key for one in bench.take(Submit)] == [K2]


def test_attempt_nobody_believes_in_is_ended_where_it_is_held() -> None:
    bench = Bench()
    bench.beat(D1, AttemptKey("other", 1))
    assert bench.take(Abort, D1) == [Abort([AttemptKey("other", 1)])]


def test_reservation_that_has_not_come_yet_is_no_loss() -> None:
    bench = Bench()
    bench.take(Submit)
    bench.beat(D0)
    bench.beat(D0)
    bench.heard(D0, Failed(K1, FailureCause.UNKNOWN_ATTEMPT))
    assert bench.take(Submit) == []


def test_output_that_differs_from_what_was_delivered_ends_that_attempt() -> None:
    bench = Bench()
    bench.decoding()
    bench.output(D0, K1, tokens(0, 3))
    bench.take(Submit)
    bench.output(D0, K1, Delta(0, 1, [77], "x", text_lengths=(1,)))
    assert [one.output_ids for one in bench.take(Submit)] == [[0, 1, 2]]
    assert bench.delivered == [0, 1, 2]


def test_drain_moves_a_sequence_without_a_pause() -> None:
    bench = Bench()
    bench.decoding()
    bench.output(D0, K1, tokens(0, 3))
    bench.take(Submit)
    bench.take(Abort)
    bench.beat(D0, K1, drain_left_s=2.0)
    assert [one.output_ids for one in bench.take(Submit, P1)] == [[0, 1, 2]]
    bench.output(D0, K1, tokens(3, 2))
    assert bench.take(Abort, D0) == []
    bench.decoding(K2, (P1, D1))
    bench.output(D1, K2, tokens(3, 1))
    assert bench.take(Abort, D0) == [Abort([K1])]
    bench.output(D1, K2, tokens(4, 6, finish=True))
    assert bench.delivered == list(range(10))


def test_drain_spreads_over_the_time_that_is_left() -> None:
    core = Attempts(InOrder(), PendingLoad())
    for number in range(9):
        key = AttemptKey(f"r{number}", 1)
        core.submit(Request(key.request_id, "m", [1], SamplingParams(), StopParams(9)), 0.0)
        core.from_worker(P0, Placed(key, D0), 0.0)
        core.from_worker(D0, Joined(key, (0,), 0), 0.0)
    held = [AttemptKey(f"r{number}", 1) for number in range(9)]
    effects = core.from_worker(D0, Heartbeat(Load(), 0.0, True, True, [], held, 4.0), 1.0)
    assert sum(isinstance(one, Send) and isinstance(one.message, Submit) for one in effects) == 3
