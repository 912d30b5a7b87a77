"""What heartbeats tell the master: what is lost, what nobody wants, who drains."""

from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    Heartbeat,
    Joined,
    Load,
    Placed,
    Submit,
)
from services.common.request import Delta, Request, SamplingParams, StopParams
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Send
from services.pd_master.pending_load import PendingLoad
from tests.unit.pd_master.attempts_bench import D0, D1, K1, K2, P0, P1, Bench, InOrder, tokens


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


def test_attempt_that_the_worker_has_said_nothing_of_is_given_time_to_arrive() -> None:
    bench = Bench()
    bench.take(Submit)
    for _ in range(9):
        bench.beat(P0)
    assert bench.take(Submit) == []
    bench.beat(P0)
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
