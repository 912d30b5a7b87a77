"""Every way in which a reservation ends before it joined."""

import pytest

from services.common import ipc
from services.common.errors import ContextLengthError, OverloadedError
from services.common.messages import (
    Abort,
    RefusalReason,
    WorkerRef,
)
from services.common.peer_messages import Cancel, Denied, HandoverFailed, Held, JoinConfirmed, Revoked
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import KEY, P0, reserve
from tests.unit.protocol.decode_bench import DecodeBench


@pytest.mark.parametrize("message", ["cancel", "abort"])
def test_reserve_after_its_cancel_or_abort_is_denied_for_one_lease(message: str) -> None:
    bench = DecodeBench()
    if message == "cancel":
        bench.peer(Cancel(KEY))
    else:
        bench.master(Abort([KEY]))
    bench.peer(reserve())
    assert bench.to_peer(P0) == [Denied(KEY, RefusalReason.STALE)]
    bench.pass_time(16)
    bench.peer(reserve())
    assert len(bench.take(fx.StartJob)) == 1


def test_cancel_gives_a_reservation_back_but_leaves_a_joined_attempt() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(Cancel(KEY))
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.is_empty
    joined = DecodeBench()
    joined.joined()
    joined.to_peer(P0)
    joined.peer(Cancel(KEY))
    assert joined.to_peer(P0) == [JoinConfirmed(KEY)]
    assert joined.core.num_jobs == 1


def test_expired_lease_returns_its_slots() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.pass_time(9)
    assert not bench.is_empty
    bench.to_peer(P0)
    bench.pass_time(1)
    assert isinstance(bench.to_peer(P0, but=Held)[0], HandoverFailed)
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.is_empty


def test_named_reservation_lives_as_long_as_it_is_named() -> None:
    bench = DecodeBench()
    bench.reserved()
    for _ in range(30):
        bench.peer(Held([KEY]))
        bench.pass_time(1)
    assert bench.core.num_jobs == 1


def test_reservation_left_out_twice_in_a_row_is_given_back() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(Held([]))
    bench.peer(Held([KEY]))
    bench.peer(Held([]))
    assert not bench.is_empty
    bench.peer(Held([]))
    assert bench.is_empty


def test_restarted_prefill_worker_holds_nothing_of_its_former_self() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.said += bench.core.peer_hello(WorkerRef("p0", "2"), 2, 0.0)
    assert bench.is_empty


def test_joined_attempt_outlives_its_prefill_worker() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.said += bench.core.peer_hello(WorkerRef("p0", "2"), 2, 0.0)
    bench.pass_time(20)
    assert bench.core.num_jobs == 1


def test_revoked_reservation_is_said_and_gone() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.to_peer(P0)
    bench.event(ipc.Revoked(1))
    assert bench.to_peer(P0) == [Revoked(KEY)]
    assert bench.is_empty


def test_failed_transfer_is_said_and_gone() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.to_peer(P0)
    bench.event(ipc.TransferFailed(1, "verification", "checksum"))
    (failed,) = bench.to_peer(P0)
    assert failed.reason is RefusalReason.TRANSFER
    assert bench.is_empty


def test_router_that_refuses_is_a_denial_with_its_reason() -> None:
    for error, reason in (
        (OverloadedError("full", retry_after_s=3.0), RefusalReason.QUEUE_FULL),
        (ContextLengthError("large"), RefusalReason.TOO_LARGE),
    ):
        bench = DecodeBench()
        bench.peer(reserve())
        bench.said += bench.core.job_refused(1, error, 0.0)
        assert bench.to_peer(P0) == [Denied(KEY, reason, error.retry_after_s, error.message)]
        assert bench.is_empty
