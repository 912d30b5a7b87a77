"""Which pair a request gets."""

import msgspec
import pytest

from services.common.errors import ContextLengthError, InvalidRequestError, NoWorkerError, OverloadedError
from services.common.messages import Limits, Load, Role, WorkerRef
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.selector import (
    USUAL,
    Policy,
    Snapshot,
    WorkerView,
    choose,
    choose_decode,
    most_slots,
    output_room,
)

LIMITS = Limits(1_000, 8, 1_000, 100, (0,), 64)
REQUEST = Request("r", "m", [1] * 10, SamplingParams(), StopParams(20))
NOBODY: frozenset[WorkerRef] = frozenset()
PAIRS = Policy(local_tokens=0)
"""Decode workers compute no prompts."""


def ref(name: str) -> WorkerRef:
    """A worker of that name."""
    return WorkerRef(name, "1")


def view(name: str, role: Role, **fields: object) -> WorkerView:
    """A ready worker; prefill workers have reached d0 and d1."""
    proven = {ref("d0"): 10.0, ref("d1"): 10.0} if role is Role.PREFILL else {}
    usual = WorkerView(ref(name), role, "g", "m", f"{name}:1", LIMITS, Load(), True, proven, 0, 0)
    return msgspec.structs.replace(usual, **fields)


def pick(
    *views: WorkerView, draw: float = 0.0, request: Request = REQUEST, excluded: frozenset[WorkerRef] = NOBODY
) -> str:
    """Names of the chosen workers."""
    pair = choose(request, excluded, Snapshot(views, draw), PAIRS)
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


def test_what_has_ended_since_a_decode_worker_reported_counts_no_more() -> None:
    loads = {"load": Load(demand_ratio=0.9)}
    emptied = view("d1", Role.DECODE, freed_tokens=400, **loads)
    assert {pick(P0, view("d0", Role.DECODE, **loads), emptied, draw=draw) for draw in (0.0, 0.9)} == {"p0+d1"}
    assert view("d0", Role.DECODE, freed_tokens=400).demand == 0.0


def test_more_choices_than_run_at_once_anywhere_are_an_error_of_n() -> None:
    asked = msgspec.structs.replace(REQUEST, num_choices=9)
    with pytest.raises(InvalidRequestError, match="9 choices .* run 8 sequences") as raised:
        pick(P0, D0, request=asked)
    assert raised.value.param == "n"
    roomy = Limits(1_000, 9, 1_000, 100, (0,), 64)
    with pytest.raises(InvalidRequestError):
        pick(P0, view("d0", Role.DECODE, limits=roomy), request=asked)
    able = view("p0", Role.PREFILL, limits=roomy), D0, view("d1", Role.DECODE, limits=roomy)
    assert pick(*able, request=asked) == "p0+d1"


def test_near_equals_are_drawn_from() -> None:
    assert {pick(P0, P1, D0, draw=draw) for draw in (0.0, 0.6)} == {"p0+d0", "p1+d0"}


def test_only_proven_pairs_are_chosen() -> None:
    assert pick(view("p0", Role.PREFILL, proven={ref("d1"): 10.0}), D0, D1) == "p0+d1"
    with pytest.raises(NoWorkerError, match="reached"):
        pick(view("p0", Role.PREFILL, proven={}), D0)


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
        pick(msgspec.structs.replace(full, pending_requests=1), D0)
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
        return choose(REQUEST, NOBODY, snapshot, PAIRS).prefill.worker_id

    assert pick_with(wait_s=1.0, cached=10_000) == "p0"
    assert pick_with(wait_s=4.0, cached=10_000) == "p1"
    assert pick_with(wait_s=1.0, cached=0) == "p1"


def decided(prompt: int, *views: WorkerView, cached: dict[str, int] | None = None, policy: Policy = USUAL) -> str:
    """Names of the chosen workers for a prompt of so many tokens, of which caches hold some."""
    held = {ref(name): tokens for name, tokens in (cached or {}).items()}
    request = Request("r", "m", [1] * prompt, SamplingParams(), StopParams(20))
    pair = choose(request, NOBODY, Snapshot(views, 0.0, held), policy)
    return pair.prefill.worker_id + ("" if pair.decode is None else "+" + pair.decode.worker.worker_id)


ROOMY = Limits(100_000, 8, 100_000, 100, (0,), 64, kv_bytes_per_token=100_000)
SLOW = {ref("d0"): 1.0, ref("d1"): 1.0}
"""Pairs at which a token's KV crosses in 0.1 ms."""
FAST_P0 = view("p0", Role.PREFILL, limits=ROOMY, load=Load(tokens_per_s=50_000))
SLOW_P0 = view("p0", Role.PREFILL, limits=ROOMY, load=Load(tokens_per_s=50_000), proven=SLOW)
BUSY_P0 = view("p0", Role.PREFILL, limits=ROOMY, load=Load(tokens_per_s=50_000, predicted_wait_s=0.5))
ROOMY_D0, ROOMY_D1 = view("d0", Role.DECODE, limits=ROOMY), view("d1", Role.DECODE, limits=ROOMY)


@pytest.mark.parametrize(
    ("prefill", "prompt", "cached", "expected"),
    [
        (FAST_P0, 200, {}, "p0+d0"),  # computing it costs others more than moving it: 8 ms against 4 + 2
        (SLOW_P0, 200, {}, "d0"),  # moving it takes 20 ms
        (BUSY_P0, 200, {}, "d0"),  # half a second of waiting
        (BUSY_P0, 300, {}, "p0+d0"),  # too long to hold the others up for
        (FAST_P0, 8000, {"d0": 7900}, "d0"),  # a chat's next turn: 100 tokens against 8000
        (FAST_P0, 8000, {"d0": 7900, "p0": 7900}, "p0+d0"),  # the prefill worker has it as well
        (SLOW_P0, 8000, {"d0": 7000}, "p0+d0"),  # a thousand tokens are missing
    ],
)
def test_a_decode_worker_computes_what_it_has_sooner_than_it_would_come(
    prefill: WorkerView, prompt: int, cached: dict[str, int], expected: str
) -> None:
    assert decided(prompt, prefill, ROOMY_D0, cached=cached) == expected


def test_a_decode_worker_that_is_behind_takes_no_prompts_over() -> None:
    behind = msgspec.structs.replace(ROOMY_D0, load=Load(predicted_wait_s=0.5))
    assert decided(200, BUSY_P0, behind) == "p0+d0"


def test_no_prompts_are_computed_on_decode_workers_where_that_is_switched_off_or_their_queue_is_full() -> None:
    assert decided(200, SLOW_P0, ROOMY_D0, policy=Policy(local_tokens=0)) == "p0+d0"
    full = msgspec.structs.replace(ROOMY_D0, load=Load(queued_requests=4, max_queued_requests=4))
    assert decided(200, SLOW_P0, full) == "p0+d0"


def test_among_nearly_equal_decode_workers_the_one_that_lacks_least_kv_is_taken() -> None:
    assert decided(5000, SLOW_P0, ROOMY_D0, ROOMY_D1, cached={"d1": 4000}) == "p0+d1"
    fuller = msgspec.structs.replace(ROOMY_D1, load=Load(demand_ratio=0.4))
    assert decided(5000, SLOW_P0, ROOMY_D0, fuller, cached={"d1": 4000}) == "p0+d0"


def test_among_nearly_equal_decode_workers_the_one_behind_a_quick_lane_is_taken() -> None:
    mixed_lanes = msgspec.structs.replace(SLOW_P0, proven={ref("d0"): 1.0, ref("d1"): 40.0})
    assert decided(5000, mixed_lanes, ROOMY_D0, ROOMY_D1) == "p0+d1"
