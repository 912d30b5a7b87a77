"""The choice against one that looks at every pair of workers."""

from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import SluiceError
from services.common.messages import Limits, Load, Peer, Role, WorkerRef
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.inflight import Pair
from services.pd_master.selector import (
    LEAST_TOKENS_PER_S,
    MISSING_WEIGHT,
    NEAR_DEMAND,
    NEAR_MOVE_S,
    NEAR_WAIT_S,
    Policy,
    Snapshot,
    WorkerView,
    choose,
    output_room,
)

NAMES = [f"w{number}" for number in range(8)]
REFS = [WorkerRef(name, "1") for name in NAMES]
few = st.sampled_from

limits = st.builds(
    lambda slots, running: Limits(slots, running, slots, 100_000_000, (0,), 64), few([1000, 500, 50]), few([4, 4, 1])
)
loads = st.builds(
    lambda wait, demand, speed, queued: Load(
        predicted_wait_s=wait, demand_ratio=demand, tokens_per_s=speed, queued_requests=queued, max_queued_requests=4
    ),
    few([0.0, 0.01, 0.5]),
    few([0.2, 0.24, 0.9]),
    few([0.0, 20_000.0]),
    few([0, 0, 0, 0, 4]),
)
views = st.builds(
    WorkerView,
    worker=few(REFS),
    role=few([Role.PREFILL, Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE, Role.DECODE, Role.MIXED]),
    group=few(["g", "g", "g", "h"]),
    model=few(["m", "m", "m", "m", "m", "n"]),
    address=st.just("a:1"),
    limits=limits,
    load=loads,
    takes_work=few([True, True, True, True, False]),
    proven=st.dictionaries(few(REFS), few([10.0, 1.0, 0.0]), min_size=3, max_size=8),
    pending_requests=few([0, 0, 1]),
    pending_tokens=few([0, 0, 300]),
    freed_tokens=few([0, 0, 300]),
)
fleets = st.lists(views, min_size=5, max_size=8, unique_by=lambda view: view.worker)
requests = st.builds(
    lambda prompt, output, choices: msgspec.structs.replace(
        Request("r", "m", [1] * prompt, SamplingParams(), StopParams(output)), num_choices=choices
    ),
    few([10, 10, 100, 600]),
    few([5, 5, 200]),
    few([1, 1, 1, 1, 2, 9]),
)


def drawn(ways: list[WorkerView], cost: Callable[[WorkerView], float], near: float, draw: float) -> WorkerView:
    """One of those nearly as cheap as the cheapest."""
    close = among_best(ways, cost, near)
    return close[int(draw * len(close))]


def among_best(ways: list[WorkerView], cost: Callable[[WorkerView], float], near: float) -> list[WorkerView]:
    best = min(map(cost, ways))
    return [view for view in ways if cost(view) <= best + 0.1 * abs(best) + near]


def exhaustive(request: Request, excluded: frozenset[WorkerRef], snapshot: Snapshot) -> Pair | None:
    """The same rule over the list of all ways, each tried by itself; None where there is none with a free place."""
    prompt, cached = len(request.prompt_ids), snapshot.cached_tokens
    workers = [
        view
        for view in snapshot.workers
        if view.takes_work and view.model == request.model and view.worker not in excluded
    ]

    def holds(view: WorkerView) -> bool:
        room = output_room(prompt, request.num_choices, view.limits.num_slots)
        return request.stop.max_new_tokens <= room and request.num_choices <= view.limits.max_running_requests

    ways: list[tuple[WorkerView, WorkerView | None]] = [
        (one, None) for one in workers if one.role is Role.MIXED and holds(one)
    ]
    for one in workers:
        for other in workers:
            paired = (one.role, other.role) == (Role.PREFILL, Role.DECODE) and one.group == other.group
            computes = prompt < one.limits.num_slots and request.num_choices <= one.limits.max_running_requests
            if paired and other.worker in one.proven and computes and holds(other):
                ways.append((one, other))
    firsts = list({one.worker: one for one, _ in ways if not one.is_full}.values())
    if not firsts:
        return None
    speed = max([LEAST_TOKENS_PER_S] + [one.load.tokens_per_s for one in firsts])

    def computed_s(view: WorkerView) -> float:
        missing = max(cached.get(one.worker, 0) for one in firsts) - cached.get(view.worker, 0)
        return view.load.predicted_wait_s + (view.pending_tokens + MISSING_WEIGHT * missing) / speed

    first = drawn(firsts, computed_s, NEAR_WAIT_S, snapshot.draw)
    if first.role is Role.MIXED:
        return Pair(first.worker, None)

    def demand(view: WorkerView) -> float:
        return view.demand - cached.get(view.worker, 0) / view.limits.num_slots

    def moved_s(view: WorkerView) -> float:
        size = (prompt - cached.get(view.worker, 0)) * view.limits.kv_bytes_per_token
        return size / (1e9 * first.proven[view.worker]) if first.proven[view.worker] else 0.0

    seconds = [other for one, other in ways if one is first and other is not None]
    second = drawn(among_best(seconds, demand, NEAR_DEMAND), moved_s, NEAR_MOVE_S, snapshot.draw)
    return Pair(first.worker, Peer(second.worker, second.address))


@settings(max_examples=250, deadline=None)
@given(
    fleets,
    requests,
    st.frozensets(few(REFS), max_size=2),
    st.floats(0.0, 0.999),
    st.dictionaries(few(REFS), few([0, 5, 9])),
)
def test_the_choice_is_that_of_all_pairs(
    fleet: list[WorkerView],
    request: Request,
    excluded: frozenset[WorkerRef],
    draw: float,
    cached: dict[WorkerRef, int],
) -> None:
    snapshot = Snapshot(tuple(fleet), draw, cached)
    chosen: Pair | None
    try:
        chosen = choose(request, excluded, snapshot, Policy(local_tokens=0))
    except SluiceError:
        chosen = None
    assert chosen == exhaustive(request, excluded, snapshot)
