"""A request's ordinary way through the master's core."""

from services.common.messages import (
    Abort,
    Joined,
    Placed,
    Prefilling,
    Queued,
)
from services.pd_master.effects import Cached, End
from tests.unit.pd_master.attempts_bench import D0, K1, P0, Bench, tokens


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
