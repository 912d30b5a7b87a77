"""Own dispatches count until the worker's report contains them."""

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
