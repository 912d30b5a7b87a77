"""Own dispatches count until the worker's report contains them."""

import pytest

from services.common.ipc import AttemptKey
from services.common.messages import WorkerRef
from services.pd_master.pending_load import PendingLoad

WORKER = WorkerRef("w", "1")
KEY, OTHER = AttemptKey("a", 1), AttemptKey("b", 1)


def test_dispatch_counts_until_the_heartbeat_after_its_arrival() -> None:
    pending = PendingLoad()
    pending.sent(WORKER, KEY, 100)
    pending.heartbeat(WORKER)
    assert pending.of(WORKER) == (1, 100, 0)
    pending.arrived(WORKER, KEY)
    assert pending.of(WORKER) == (1, 100, 0)
    pending.heartbeat(WORKER)
    assert (pending.of(WORKER), pending.num_workers) == ((0, 0, 0), 0)


def test_dispatch_that_ends_before_it_was_reported_counts_no_more_whether_it_arrived_or_not() -> None:
    pending = PendingLoad()
    pending.sent(WORKER, KEY, 100)
    pending.sent(WORKER, OTHER, 10)
    pending.arrived(WORKER, KEY)
    pending.ended(WORKER, KEY, 105)
    assert pending.of(WORKER) == (1, 10, 0)
    pending.ended(WORKER, OTHER, 10)
    assert pending.num_workers == 0


def test_what_ends_after_it_was_reported_is_taken_off_until_the_next_report() -> None:
    pending = PendingLoad()
    pending.sent(WORKER, KEY, 100)
    pending.arrived(WORKER, KEY)
    pending.heartbeat(WORKER)
    pending.ended(WORKER, KEY, 130)
    assert pending.of(WORKER) == (0, 0, 130)
    pending.heartbeat(WORKER)
    assert pending.num_workers == 0


def test_a_lost_worker_leaves_nothing_behind() -> None:
    pending = PendingLoad()
    pending.heartbeat(WORKER)
    pending.sent(WORKER, OTHER, 10)
    pending.ended(WORKER, KEY, 130)
    assert pending.num_workers == 1
    pending.lost(WORKER)
    pending.ended(WORKER, OTHER, 10)
    assert (pending.num_workers, pending.of(WORKER)) == (0, (0, 0, 0))


def test_what_other_masters_send_and_see_end_is_taken_to_be_as_this_ones_by_their_shares_of_the_requests() -> None:
    pending, other = PendingLoad(), WorkerRef("v", "1")
    pending.heartbeat(WORKER, num_own=2, num_all=4)
    pending.heartbeat(other, num_own=1, num_all=8)
    pending.sent(WORKER, KEY, 100)
    assert (pending.times, pending.of(WORKER)) == (4.0, (1, 400, 0))
    pending.ended(WORKER, OTHER, 10)
    assert pending.of(WORKER) == (1, 400, 40)
    pending.heartbeat(WORKER, num_own=3, num_all=4)
    assert pending.times == 3.0
    pending.lost(other)
    assert pending.times == pytest.approx(4 / 3)


def test_a_master_with_few_requests_or_none_does_not_make_much_of_them() -> None:
    pending = PendingLoad()
    pending.sent(WORKER, KEY, 100)
    pending.heartbeat(WORKER, num_own=0, num_all=500)
    assert pending.of(WORKER) == (1, 100, 0)
    pending.heartbeat(WORKER, num_own=1, num_all=500)
    assert pending.of(WORKER).num_tokens == 3200
    pending.heartbeat(WORKER, num_own=5, num_all=4)
    assert pending.times == 1.0, "a worker holds what has ended until its master has heard of it"
