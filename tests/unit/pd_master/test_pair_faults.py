"""Pairs whose hand-overs keep failing rest, where others take their place."""

import pytest

from services.common.errors import NoWorkerError
from services.common.messages import Joined, Limits, Load, Placed, PlacementRefused, RefusalReason, Role, WorkerRef
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.pair_faults import LEAST, REST_S, PairFaults
from services.pd_master.selector import Policy, Snapshot, WorkerView, choose
from tests.unit.pd_master.attempts_bench import D0, D1, K1, P0, P1, Bench

REQUEST = Request("r", "m", [1] * 10, SamplingParams(), StopParams(20))
PAIRS = Policy(local_tokens=0)


def view(worker: WorkerRef, role: Role, demand: float = 0.0, *, takes_work: bool = True) -> WorkerView:
    proven = {D0: 10.0, D1: 10.0} if role is Role.PREFILL else {}
    limits, load = Limits(1_000, 8, 1_000, 100, (0,), 64), Load(demand_ratio=demand)
    return WorkerView(worker, role, "g", "m", "a:1", limits, load, takes_work, proven, 0, 0)


PREFILL = view(P0, Role.PREFILL), view(P1, Role.PREFILL)
EMPTY, BUSY = view(D0, Role.DECODE), view(D1, Role.DECODE, demand=0.8)


def fail(faults: PairFaults, prefill: WorkerRef, decode: WorkerRef, now: float, times: int = LEAST) -> None:
    for _ in range(times):
        faults.refused(prefill, decode, RefusalReason.TRANSFER, now)


def pick(faults: PairFaults, now: float, *views: WorkerView, draw: float = 0.0) -> tuple[str, str]:
    """Names of the chosen pair."""
    pair = choose(REQUEST, frozenset(), faults.without(Snapshot(views, draw), now), PAIRS)
    assert pair.decode is not None
    return pair.prefill.worker_id, pair.decode.worker.worker_id


def test_the_emptiest_decode_worker_that_nothing_reaches_gets_nothing_until_it_has_rested() -> None:
    faults, only = PairFaults(), (PREFILL[0], EMPTY, BUSY)
    fail(faults, P0, D0, now=5.0, times=LEAST - 1)
    assert pick(faults, 5.0, *only) == ("p0", "d0")
    fail(faults, P0, D0, now=6.0, times=1)
    assert pick(faults, 6.0, *only) == ("p0", "d1")
    assert pick(faults, 6.0 + REST_S, *only) == ("p0", "d0")
    fail(faults, P0, D0, now=20.0, times=1)
    assert pick(faults, 20.0, *only) == ("p0", "d1")
    faults.joined(P0, D0)
    assert pick(faults, 20.0, *only) == ("p0", "d0")


def test_a_prefill_worker_that_reaches_nobody_gives_way_to_the_others() -> None:
    faults = PairFaults()
    for decode in (D0, D1):
        fail(faults, P0, decode, now=1.0)
    assert {pick(faults, 1.0, *PREFILL, EMPTY, BUSY, draw=draw) for draw in (0.0, 0.9)} == {("p1", "d0")}


@pytest.mark.parametrize("others", [(), (view(D1, Role.DECODE, takes_work=False),)])
def test_where_nobody_is_left_nobody_rests(others: tuple[WorkerView, ...]) -> None:
    faults = PairFaults()
    fail(faults, P0, D0, now=1.0)
    assert pick(faults, 1.0, PREFILL[0], EMPTY, *others) == ("p0", "d0")


def test_refusals_for_load_are_no_faults() -> None:
    faults = PairFaults()
    for reason in (RefusalReason.QUEUE_FULL, RefusalReason.REVOKED, RefusalReason.DRAINING, RefusalReason.NO_PEER):
        for _ in range(LEAST):
            faults.refused(P0, D0, reason, 1.0)
    assert pick(faults, 1.0, PREFILL[0], EMPTY, BUSY) == ("p0", "d0")


def test_the_core_tells_of_hand_overs_that_fail_and_of_those_that_arrive() -> None:
    bench = Bench()
    faults = bench.core._faults
    fail(faults, P0, D0, now=1.0, times=LEAST - 1)
    bench.heard(P0, Placed(K1, D0), PlacementRefused(K1, RefusalReason.TRANSFER))
    assert pick(faults, 1.0, PREFILL[0], EMPTY, BUSY) == ("p0", "d1")
    bench.heard(D1, Joined(K1, (0,), 0))
    with pytest.raises(NoWorkerError):
        choose(REQUEST, frozenset({D1}), faults.without(Snapshot((PREFILL[0], EMPTY, BUSY), 0.0), 1.0), PAIRS)
