"""Decode workers that refuse, fail, restart or are out of reach, as the prefill worker takes it."""

from services.common import ipc
from services.common.messages import (
    PlacementRefused,
    Redirect,
    RefusalReason,
    WorkerRef,
)
from services.common.peer_messages import (
    Cancel,
    Denied,
    Granted,
    HandoverFailed,
    Held,
    Reserve,
    Revoked,
)
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import AT_D0, AT_D1, D0, D1, KEY, M0, handover, output, submit
from tests.unit.protocol.handoff_bench import K2, PrefillBench


def test_a_redirect_does_not_ask_before_the_router_has_kept_room() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.master(Redirect(KEY, 2, AT_D1))
    assert bench.to_peer(D1) == []
    bench.event(ipc.Admitted(1, 0, 3))
    assert [type(one) for one in bench.to_peer(D1)] == [Reserve]


def test_refused_placement_keeps_the_kv_and_goes_on_under_the_new_number() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.event(output(1, 0))
    bench.peer(Denied(KEY, RefusalReason.QUEUE_FULL, 2.0, "full"))
    assert bench.to_master()[-1] == PlacementRefused(KEY, RefusalReason.QUEUE_FULL, 2.0, "full")
    assert bench.take(fx.EndJob) == []
    bench.said += bench.core.peer_hello(D1, 2, 0.0)
    bench.to_peer(D1)
    bench.master(Redirect(KEY, 2, AT_D1))
    assert [one.key for one in bench.to_peer(D1)] == [K2]
    bench.peer(Granted(K2, 0), D1)
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Place(1, "d1", K2, 0))]
    assert bench.core.held(M0) == [K2]


def test_answers_to_an_old_number_are_ignored_and_a_late_grant_is_given_back() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.peer(Revoked(KEY))
    bench.master(Redirect(KEY, 2, AT_D0))
    bench.to_peer(D0)
    bench.to_master()
    bench.peer(HandoverFailed(KEY, RefusalReason.TRANSFER))
    assert bench.to_master() == []
    bench.peer(Granted(KEY, 0))
    assert bench.to_peer(D0) == [Cancel(KEY)]


def test_failed_transfer_cancels_and_asks_for_another_place() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.event(ipc.TransferFailed(1, "deadline", "slow"))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert isinstance(bench.to_master()[-1], PlacementRefused)
    assert bench.core.num_jobs == 1


def test_what_was_not_answered_is_said_again_on_the_next_session() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.to_peer(D0)
    bench.said += bench.core.peer_closed(D0, 1)
    bench.said += bench.core.peer_hello(D0, 2, 0.0)
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.peer(Granted(KEY, 0))
    bench.event(output(1, 0))
    bench.to_peer(D0)
    bench.said += bench.core.peer_hello(D0, 3, 0.0)
    assert bench.to_peer(D0) == [handover()]


def test_restarted_decode_worker_loses_its_placements_at_once() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_hello(WorkerRef("d0", "2"), 2, 0.0)
    assert bench.to_master()[-1].reason is RefusalReason.NO_PEER


def test_decode_worker_without_a_session_loses_its_placements_after_a_grace() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_closed(D0, 1)
    bench.to_master()
    bench.pass_time(2)
    assert bench.to_master() == []
    bench.pass_time(1)
    assert bench.to_master()[-1].reason is RefusalReason.NO_PEER


def test_end_of_an_old_session_does_not_touch_the_new_one() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_hello(D0, 2, 0.0)
    bench.said += bench.core.peer_closed(D0, 1)
    bench.pass_time(5)
    assert not any(isinstance(one, PlacementRefused) for one in bench.to_master())


def test_placement_that_the_decode_worker_leaves_out_twice_is_lost_and_cancelled() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.peer(Held([]))
    bench.peer(Held([KEY]))
    bench.peer(Held([]))
    assert bench.to_peer(D0) == []
    bench.peer(Held([]))
    assert bench.to_peer(D0) == [Cancel(KEY)]
