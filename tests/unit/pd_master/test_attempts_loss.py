"""The one recovery operation, for each kind of loss."""

import pytest

from services.common.errors import WorkerFailedError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Joined,
    Peer,
    Placed,
    PlacementRefused,
    Prefilling,
    Queued,
    Redirect,
    RefusalReason,
    Submit,
    WorkerRef,
)
from services.pd_master.effects import End
from tests.unit.pd_master.attempts_bench import D0, D1, K1, K2, P0, P1, SUBMIT_ORDER, Bench, tokens


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
    assert [(one.choices, one.output_ids) for one in submits] == [((1,), [0]), ((2,), [])]
    assert len({one.key for one in submits} | {K1}) == 3
    assert all(one.key.request_id.startswith(K1.request_id) for one in submits)


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
