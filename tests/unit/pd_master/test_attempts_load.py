"""The master under load: who is told to come back later, who waits, who runs out of time."""

import pytest

from services.common.errors import DeadlineError, NoWorkerError, OverloadedError, WorkerFailedError
from services.common.messages import (
    Abort,
    Heartbeat,
    Load,
    Placed,
    PlacementRefused,
    Prefilling,
    Queued,
    RefusalReason,
    Refused,
    Submit,
)
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.attempts import Attempts
from services.pd_master.pending_load import PendingLoad
from tests.unit.pd_master.attempts_bench import D0, K1, K2, P0, P1, Bench, InOrder, tokens


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


def test_what_ends_is_taken_off_its_decode_worker_with_prompt_and_output_until_that_reports_again() -> None:
    bench = Bench()
    bench.decoding()
    bench.beat(D0, K1)
    assert bench.pending.of(D0) == (0, 0, 0)
    bench.output(D0, K1, tokens(0, 3, finish=True))
    assert bench.pending.of(D0).num_freed == len(bench.request.prompt_ids) + 3
    bench.beat(D0)
    assert bench.pending.num_workers == 0


def test_each_heartbeat_tells_how_much_of_all_work_is_this_masters() -> None:
    bench = Bench()
    bench.decoding()
    bench.heard_beat(D0, Heartbeat(Load(queued_requests=1, running_requests=4), 0.0, True, False, [], [K1], 0.0))
    assert bench.pending.times == 5.0
    several = Bench(num_choices=4)
    several.decoding()
    several.heard_beat(D0, Heartbeat(Load(running_requests=4), 0.0, True, False, [], [K1], 0.0))
    assert several.pending.times == 1.0


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


def test_timers_of_requests_that_are_over_do_not_pile_up() -> None:
    core = Attempts(InOrder(), PendingLoad())
    for number in range(20_000):
        core.submit(Request(f"r{number}", "m", [1], SamplingParams(), StopParams(1)), 0.0)
        core.abort(f"r{number}")
    assert core.num_timers < 5_000
