"""Off an engine that stands still: on where there is a place, and nothing is given up where there is none."""

import msgspec

from services.common.errors import WorkerFailedError
from services.common.ipc import AttemptKey
from services.common.messages import Abort, Placed, Prefilling, Queued, Redirect, Submit
from tests.unit.pd_master.attempts_bench import D0, D1, K1, K2, P0, P1, Bench, tokens


def stalled(bench: Bench) -> None:
    """The decode worker's engine stands still after three tokens."""
    bench.decoding()
    bench.output(D0, K1, tokens(0, 3))
    bench.take(Submit)
    bench.take(Abort)
    bench.stall(D0)


def test_sequence_goes_on_elsewhere_and_leaves_the_stalled_worker_at_its_first_token() -> None:
    bench = Bench()
    stalled(bench)
    assert [one.output_ids for one in bench.take(Submit, P1)] == [[0, 1, 2]]
    assert bench.take(Abort, D0) == []
    bench.decoding(K2, (P1, D1))
    bench.output(D1, K2, tokens(3, 7, finish=True))
    assert bench.delivered == list(range(10))
    assert Abort([K1]) in bench.take(Abort, D0)


def test_engine_that_comes_to_itself_first_goes_on() -> None:
    bench = Bench()
    stalled(bench)
    bench.output(D0, K1, tokens(3, 7, finish=True))
    assert bench.delivered == list(range(10))
    assert bench.end is not None
    assert bench.end.error is None
    assert bench.core.num_attempts == 0


def test_stall_that_lasts_starts_one_attempt_and_no_more() -> None:
    bench = Bench()
    stalled(bench)
    for second in range(20):
        bench.stall(D0, 7.0 + second)
    assert [one.key for one in bench.take(Submit)] == [K2]


def test_without_another_worker_the_sequence_stays_where_it_is() -> None:
    bench = Bench()
    bench.chooser.nobody = True
    stalled(bench)
    for second in range(60):
        bench.stall(D0, 7.0 + second)
        bench.said += bench.core.tick(7.0 + second)
    assert bench.end is None
    assert bench.take(Abort) == []
    bench.output(D0, K1, tokens(3, 7, finish=True))
    assert bench.delivered == list(range(10))


def test_computed_prompt_that_has_not_joined_moves_to_another_decode_worker() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.stall(D0)
    (redirect,) = bench.take(Redirect, P0)
    assert redirect.decode.worker == D1


def test_prompt_on_a_stalled_prefill_worker_is_computed_by_another_one() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0))
    bench.take(Submit)
    bench.stall(P0)
    assert [one.key for one in bench.take(Submit, P1)] == [K2]


def test_each_of_several_choices_goes_on_alone() -> None:
    bench = Bench(num_choices=2)
    bench.decoding()
    bench.output(D0, K1, tokens(0, 2, choice=0))
    bench.take(Submit)
    bench.stall(D0)
    assert [(one.choices, one.output_ids) for one in bench.take(Submit)] == [((0,), [0, 1]), ((1,), [])]


def test_several_choices_without_another_worker_stay_where_they_are() -> None:
    bench = Bench(num_choices=2)
    bench.decoding()
    bench.chooser.nobody = True
    bench.stall(D0)
    assert bench.take(Abort, D0) == []


def test_request_that_stalled_two_engines_is_not_taken_to_a_third_and_fails_with_them() -> None:
    bench = Bench()
    stalled(bench)
    bench.decoding(K2, (P1, D1))
    bench.take(Submit)
    bench.stall(D1, 12.0)
    bench.said += bench.core.worker_lost(D0, 20.0, crashed=True)
    bench.stall(D1, 21.0)
    assert bench.take(Submit) == []
    bench.said += bench.core.worker_lost(D1, 26.0, crashed=True)
    assert bench.failed_with(WorkerFailedError)
    assert AttemptKey("r", 3) not in [one.key for one in bench.take(Submit)]


def test_request_whose_engines_stood_still_and_crashed_is_not_taken_to_a_third() -> None:
    bench = Bench()
    stalled(bench)
    bench.output(D0, K1, tokens(3, 1))
    bench.decoding(K2, (P1, D1))
    bench.output(D1, K2, tokens(3, 2))
    bench.take(Submit)
    bench.chooser.closed.clear()
    bench.said += bench.core.worker_lost(D1, 12.0, crashed=True)
    assert bench.failed_with(WorkerFailedError)
    assert bench.take(Submit) == []


def test_worker_whose_stall_is_over_takes_the_request_again() -> None:
    bench = Bench()
    stalled(bench)
    bench.decoding(K2, (P1, D1))
    bench.output(D1, K2, tokens(3, 2))
    bench.take(Submit)
    bench.chooser.closed = {D1}
    bench.said += bench.core.worker_lost(D1, 12.0, crashed=False)
    assert [one.decode.worker for one in bench.take(Submit) if one.decode] == [D0]


def test_worker_whose_stall_is_over_takes_a_computed_prompt_again() -> None:
    bench = Bench()
    bench.heard(P0, Queued(K1), Prefilling(K1, 0), Placed(K1, D0))
    bench.stall(D0)
    bench.chooser.closed = {D1}
    bench.take(Redirect)
    bench.said += bench.core.worker_lost(D1, 12.0, crashed=False)
    assert [one.decode.worker for one in bench.take(Redirect, P0)] == [D0]


def test_without_any_worker_a_stall_asks_once_for_all_that_it_holds() -> None:
    bench = Bench()
    bench.decoding()
    for number in range(20):
        request = msgspec.structs.replace(bench.request, request_id=f"r{number}")
        bench.said += bench.core.submit(request, 0.0)
        bench.decoding(AttemptKey(f"r{number}", 1))
    bench.chooser.nobody, bench.chooser.num_asked = True, 0
    bench.stall(D0)
    assert bench.chooser.num_asked == 1


def test_a_place_that_was_chosen_is_taken() -> None:
    bench = Bench(num_choices=2)
    bench.decoding()
    bench.said += bench.core.submit(msgspec.structs.replace(bench.request, request_id="s"), 0.0)
    bench.decoding(AttemptKey("s", 1))
    bench.take(Submit)
    bench.chooser.num_asked = 0
    bench.stall(D0)
    assert [one.choices for one in bench.take(Submit)] == [(0, 1), (0, 1)]
    assert bench.chooser.num_asked == 3, "whether anybody is there, and where for each"
