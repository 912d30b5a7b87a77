"""Which pair a request gets."""

import dataclasses

import pytest

from services.common.errors import ContextLengthError, NoWorkerError, OverloadedError
from services.common.messages import Limits, Load, Role, WorkerRef
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.selector import Snapshot, WorkerView, choose, choose_decode, most_slots, output_room

LIMITS = Limits(1_000, 8, 1_000, 100, (0,), 64)
REQUEST = Request("r", "m", [1] * 10, SamplingParams(), StopParams(20))
NOBODY: frozenset[WorkerRef] = frozenset()


def ref(name: str) -> WorkerRef:
    """A worker of that name."""
    return WorkerRef(name, "1")


def view(name: str, role: Role, **fields: object) -> WorkerView:
    """A ready worker; prefill workers have reached d0 and d1."""
    proven = frozenset({ref("d0"), ref("d1")}) if role is Role.PREFILL else frozenset()
    usual = WorkerView(ref(name), role, "g", "m", f"{name}:1", LIMITS, Load(), True, proven, 0, 0)
    return dataclasses.replace(usual, **fields)  # type: ignore[arg-type]


def pick(
    *views: WorkerView, draw: float = 0.0, request: Request = REQUEST, excluded: frozenset[WorkerRef] = NOBODY
) -> str:
    """Names of the chosen workers."""
    pair = choose(request, excluded, Snapshot(views, draw))
    return pair.prefill.worker_id + ("" if pair.decode is None else "+" + pair.decode.worker.worker_id)


P0, P1 = view("p0", Role.PREFILL), view("p1", Role.PREFILL)
D0, D1 = view("d0", Role.DECODE), view("d1", Role.DECODE)


def test_prefill_with_the_shortest_wait_and_decode_with_the_lowest_demand() -> None:
    busy = view("p0", Role.PREFILL, load=Load(predicted_wait_s=2.0))
    full = view("d0", Role.DECODE, load=Load(demand_ratio=0.9))
    assert pick(busy, P1, full, D1) == "p1+d1"


def test_own_dispatches_count_before_the_worker_reports_them() -> None:
    assert pick(view("p0", Role.PREFILL, pending_tokens=50_000), P1, D0) == "p1+d0"
    assert pick(P0, view("d0", Role.DECODE, pending_tokens=500), D1) == "p0+d1"


def test_near_equals_are_drawn_from() -> None:
    assert {pick(P0, P1, D0, draw=draw) for draw in (0.0, 0.6)} == {"p0+d0", "p1+d0"}


def test_only_proven_pairs_are_chosen() -> None:
    assert pick(view("p0", Role.PREFILL, proven=frozenset({ref("d1")})), D0, D1) == "p0+d1"
    with pytest.raises(NoWorkerError, match="reached"):
        pick(view("p0", Role.PREFILL, proven=frozenset()), D0)


def test_another_start_of_a_proven_worker_is_not_proven() -> None:
    with pytest.raises(NoWorkerError):
        pick(P0, view("d0", Role.DECODE, worker=WorkerRef("d0", "2")))


def test_pairs_stay_within_a_group() -> None:
    assert pick(P0, view("d0", Role.DECODE, group="other"), D1) == "p0+d1"


def test_other_models_are_not_touched() -> None:
    with pytest.raises(NoWorkerError, match="no prefill worker"):
        pick(view("p0", Role.PREFILL, model="other"), D0)


def test_missing_role_is_named() -> None:
    with pytest.raises(NoWorkerError, match="no prefill worker"):
        pick(D0)
    with pytest.raises(NoWorkerError, match="no decode worker"):
        pick(P0)


def test_worker_that_takes_no_work_is_left_out() -> None:
    assert pick(P0, view("d0", Role.DECODE, takes_work=False), D1) == "p0+d1"


def test_excluded_workers_are_left_out() -> None:
    assert pick(P0, P1, D0, D1, excluded=frozenset({ref("p0"), ref("d0")})) == "p1+d1"


def test_full_queues_are_overload_with_a_time_to_come_back() -> None:
    full = view("p0", Role.PREFILL, load=Load(queued_requests=3, max_queued_requests=4, predicted_wait_s=7.0))
    assert pick(full, D0) == "p0+d0"
    with pytest.raises(OverloadedError) as caught:
        pick(dataclasses.replace(full, pending_requests=1), D0)
    assert caught.value.retry_after_s == 7.0


def test_request_larger_than_every_pool_names_the_limit() -> None:
    large = Request("r", "m", [1] * 10, SamplingParams(), StopParams(2_000))
    with pytest.raises(ContextLengthError, match="1000 slots"):
        pick(P0, D0, request=large)


def test_request_goes_where_it_fits() -> None:
    large = Request("r", "m", [1] * 10, SamplingParams(), StopParams(2_000))
    roomy = view("d1", Role.DECODE, limits=Limits(5_000, 8, 5_000, 100, (0,), 64), load=Load(demand_ratio=0.9))
    assert pick(P0, D0, roomy, request=large) == "p0+d1"


@pytest.mark.parametrize("num_choices", [1, 3])
def test_all_the_output_there_is_room_for_is_taken_and_not_one_token_more(num_choices: int) -> None:
    room = output_room(len(REQUEST.prompt_ids), num_choices, LIMITS.num_slots)
    for max_new_tokens in (room, room + 1):
        stop = StopParams(max_new_tokens)
        request = Request("r", "m", REQUEST.prompt_ids, SamplingParams(), stop, num_choices=num_choices)
        if max_new_tokens == room:
            assert pick(P0, D0, request=request) == "p0+d0"
        else:
            with pytest.raises(ContextLengthError):
                pick(P0, D0, request=request)


def test_the_largest_pool_that_decodes_is_what_outputs_are_limited_to() -> None:
    views = [P0, D0, view("d1", Role.DECODE, limits=Limits(3_000, 8, 1_000, 100, (0,), 64)),
             view("p1", Role.PREFILL, limits=Limits(9_000, 8, 1_000, 100, (0,), 64)),
             view("d2", Role.DECODE, limits=Limits(5_000, 8, 1_000, 100, (0,), 64), takes_work=False)]  # fmt: skip
    assert most_slots("m", Snapshot(tuple(views), 0.0)) == 3_000
    assert most_slots("other", Snapshot(tuple(views), 0.0)) == 0


def test_mixed_worker_takes_both_halves() -> None:
    assert pick(view("x0", Role.MIXED)) == "x0"


def test_other_decode_worker_for_a_computed_prompt() -> None:
    snapshot = Snapshot((P0, D0, D1), 0.0)
    assert choose_decode(REQUEST, ref("p0"), frozenset({ref("d0")}), snapshot).worker == ref("d1")
    with pytest.raises(NoWorkerError):
        choose_decode(REQUEST, ref("p0"), frozenset({ref("d0"), ref("d1")}), snapshot)


def test_cached_prefix_outweighs_a_short_wait_and_not_a_long_one() -> None:
    def pick_with(wait_s: float, cached: int) -> str:
        busy = view("p0", Role.PREFILL, load=Load(predicted_wait_s=wait_s, tokens_per_s=20_000))
        snapshot = Snapshot((busy, P1, D0), 0.0, {ref("p0"): cached})
        return choose(REQUEST, NOBODY, snapshot).prefill.worker_id

    assert pick_with(wait_s=1.0, cached=10_000) == "p0"
    assert pick_with(wait_s=4.0, cached=10_000) == "p1"
    assert pick_with(wait_s=1.0, cached=0) == "p1"
