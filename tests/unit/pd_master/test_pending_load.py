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
    assert pending.num_tokens(WORKER) == 100
    pending.arrived(WORKER, KEY)
    assert pending.num_tokens(WORKER) == 100
    pending.heartbeat(WORKER)
    assert (pending.num_tokens(WORKER), pending.num_requests(WORKER), pending.num_workers) == (0, 0, 0)


def test_dropped_dispatch_counts_no_more_whether_it_arrived_or_not() -> None:
    pending = PendingLoad()
    pending.sent(WORKER, KEY, 100)
    pending.sent(WORKER, OTHER, 10)
    pending.arrived(WORKER, KEY)
    pending.dropped(WORKER, KEY)
    assert (pending.num_tokens(WORKER), pending.num_requests(WORKER)) == (10, 1)
    pending.dropped(WORKER, OTHER)
    assert pending.num_workers == 0
