"""The admission plan and the refusals, rule by rule."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.peak_memory import Joiners, PeakCurve, peak_tokens
from services.router.scheduler import Plan, PoolView, plan
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig, WorkKind

CONFIG = RouterConfig(
    capacity_slots=1000, max_running=100, chunk_tokens=100, step_budget_tokens=100, lookahead_steps=1, extent_slots=1
)
EMPTY = PeakCurve.of(Joiners.of([], []), now=0)
LOCAL, PREFILL, RESERVATION, RESUMED = WorkKind.LOCAL, WorkKind.PREFILL, WorkKind.RESERVATION, WorkKind.RESUMED


def work(key: str, prompt: int = 10, kind: WorkKind = RESERVATION, arrival_s: float = 0.0, **more: Any) -> QueuedWork:
    return replace(QueuedWork(key, kind, arrival_s, prompt, max_new_tokens=100), **more)


def queue_of(*works: QueuedWork, config: RouterConfig = CONFIG) -> WaitingQueue:
    queue = WaitingQueue(config)
    for one in works:
        queue.push(one, unit=0.5, group=0)
    return queue


def pool(held: int = 0, left: int = 0, **more: Any) -> PoolView:
    curve = PeakCurve.of(Joiners.of([held], [left]), now=0) if held else EMPTY
    return replace(PoolView(curve, CONFIG.capacity_slots, num_running=0, step_tokens_left=100), **more)


def planned(
    queue: WaitingQueue, view: PoolView, left: int = 10, config: RouterConfig = CONFIG, now_s: float = 0
) -> Plan:
    arrays = queue.arrays()
    joiners = Joiners(arrays.held, np.where(arrays.growth > 0, left, 0), arrays.growth)
    return plan(queue, joiners, view, config, now_s)


def admitted(queue: WaitingQueue, decided: Plan) -> list[object]:
    return [queue[index].work.key for index in decided.admit]


# ------------------------------------------------------------------------------------------------------------- order


def test_first_come_first_served_by_the_requests_arrival() -> None:
    queue = queue_of(work("late", arrival_s=2), work("early", arrival_s=1), work("latest", arrival_s=3))
    assert admitted(queue, planned(queue, pool())) == ["early", "late", "latest"]


def test_priority_goes_before_age_but_only_by_a_bounded_amount() -> None:
    first, second = work("low", priority=1, arrival_s=0), work("high", priority=0, arrival_s=20)
    assert [entry.work.key for entry in queue_of(first, second)] == ["high", "low"]
    much_later = work("high", priority=0, arrival_s=31)
    assert [entry.work.key for entry in queue_of(first, much_later)] == ["low", "high"]


def test_a_preempted_sequence_goes_before_all() -> None:
    queue = queue_of(work("old", arrival_s=0), work("back", kind=RESUMED, arrival_s=9))
    assert queue[0].work.key == "back"


# ----------------------------------------------------------------------------------------------------------- limits


def test_admits_while_the_peak_stays_below_capacity() -> None:
    queue = queue_of(*(work(str(number), prompt=190) for number in range(6)))
    assert admitted(queue, planned(queue, pool())) == ["0", "1", "2", "3"]  # 5 x (190 + 10) would be 1000, not below


def test_running_limit_counts_choices_and_is_never_passed() -> None:
    queue = queue_of(work("three", num_choices=3), work("two", num_choices=2), work("one"))
    assert admitted(queue, planned(queue, pool(num_running=96))) == ["three"]


def test_step_budget_takes_the_first_chunk_only() -> None:
    config = replace(CONFIG, step_budget_tokens=150)
    queue = queue_of(work("long", 700, LOCAL), work("short", 50, LOCAL), work("more", 1, LOCAL), config=config)
    decided = planned(queue, pool(step_tokens_left=150), config=config)
    assert admitted(queue, decided) == ["long", "short"]


def test_reservations_need_no_step_budget() -> None:
    queue = queue_of(work("kv", 500))
    assert admitted(queue, planned(queue, pool(step_tokens_left=0))) == ["kv"]


def test_an_empty_pool_lets_the_first_in_whatever_is_predicted() -> None:
    queue = queue_of(work("long", 600), work("next", 600))
    assert admitted(queue, planned(queue, pool(), left=900)) == ["long"]


# -------------------------------------------------------------------------------------------------------- preempted


def test_nothing_is_granted_while_a_preempted_one_waits() -> None:
    queue = queue_of(work("small", 1, arrival_s=0), work("back", 500, RESUMED, arrival_s=9))
    assert admitted(queue, planned(queue, pool(held=600, left=5))) == []


def test_the_preempted_are_resumed_by_the_normal_rule_and_alone() -> None:
    queue = queue_of(work("new", 1), work("back", 100, RESUMED))
    assert admitted(queue, planned(queue, pool(held=600, left=5))) == ["back"]


def test_nothing_else_is_granted_while_a_resumption_is_unanswered() -> None:
    queue = queue_of(work("new", 1), work("back", 10, RESUMED))
    assert admitted(queue, planned(queue, pool(held=10, left=1, resuming=True))) == ["back"]
    queue.pop("back")
    assert admitted(queue, planned(queue, pool(held=10, left=1, resuming=True))) == []
    assert admitted(queue, planned(queue, pool(held=10, left=1, resuming=False))) == ["new"]


# ----------------------------------------------------------------------------------------------------------- bypass


def test_small_ones_pass_one_that_does_not_fit() -> None:
    queue = queue_of(work("giant", 900), work("a", 10), work("b", 10))
    decided = planned(queue, pool(held=500, left=5))
    assert admitted(queue, decided) == ["a", "b"]
    assert decided.bypassed == {0: 2}


@pytest.mark.parametrize(("bypassed", "blocked_for_s", "passes"), [(63, 4.9, True), (64, 0.0, False), (0, 5.0, False)])
def test_patience_is_bounded_by_count_and_by_time(bypassed: int, blocked_for_s: float, passes: bool) -> None:
    queue = queue_of(work("giant", 900), work("small", 10))
    queue[0].bypassed, queue[0].blocked_since_s = bypassed, 100.0
    decided = planned(queue, pool(held=500, left=5), now_s=100.0 + blocked_for_s)
    assert admitted(queue, decided) == (["small"] if passes else [])


def test_one_plan_passes_nobody_more_often_than_patience_is_left() -> None:
    queue = queue_of(work("giant", 900), work("other giant", 900), *(work(f"small{number}", 10) for number in range(5)))
    queue[0].bypassed, queue[1].bypassed = CONFIG.max_bypasses - 3, CONFIG.max_bypasses - 2
    decided = planned(queue, pool(held=500, left=5))
    assert admitted(queue, decided) == ["small0", "small1"]
    assert decided.bypassed == {0: 2, 1: 2}


def test_an_important_one_does_not_wait_for_an_unimportant_one_that_is_out_of_patience() -> None:
    queue = queue_of(work("giant", 900, priority=1), work("usual", 10, priority=1), work("important", 10, arrival_s=20))
    blocked = next(entry for entry in queue if entry.work.key == "giant")
    blocked.bypassed, blocked.blocked_since_s = 64, 0.0
    assert admitted(queue, planned(queue, pool(held=500, left=5), now_s=20.0)) == ["important"]


def test_one_plan_looks_past_a_limited_number() -> None:
    config = replace(CONFIG, scan_limit=3)
    queue = queue_of(*(work(f"giant{number}", 900) for number in range(3)), work("small", 10), config=config)
    assert admitted(queue, planned(queue, pool(held=500, left=5), config=config)) == []


# ------------------------------------------------------------------------------------------------------------ grants


def prefill_pool(**more: Any) -> PoolView:
    standing = PeakCurve.of(Joiners.of([300], [0], [0]), now=0)
    return pool(**{"curve": standing, "step_tokens_left": 1000, **more})


def test_ungranted_prompts_fill_only_their_share_of_the_pool() -> None:
    queue = queue_of(*(work(str(number), 90, PREFILL) for number in range(6)))
    decided = planned(queue, prefill_pool(ungranted_slots=300))
    assert admitted(queue, decided) == ["0", "1"]
    assert decided.reserve_first == [2, 3, 4, 5]
    assert decided.bypassed == {}


def test_a_granted_prompt_is_let_in_beyond_the_share() -> None:
    queue = queue_of(work("a", 90, PREFILL), work("b", 90, PREFILL))
    queue.grant("b")
    decided = planned(queue, prefill_pool(ungranted_slots=480))
    assert admitted(queue, decided) == ["b"]
    assert decided.reserve_first == [1]


def test_room_is_kept_for_what_is_asked_for() -> None:
    queue = queue_of(work("big", 600, PREFILL), work("a", 90, PREFILL), work("b", 90, PREFILL))
    decided = planned(queue, prefill_pool())
    assert admitted(queue, decided) == ["a"]
    assert decided.reserve_first == [0]
    assert queue.ask(0)
    queue.take(decided.admit)
    with_a = PeakCurve.of(Joiners.of([300, 90], [0, 0], [0, 0]), now=0)
    later = planned(queue, prefill_pool(curve=with_a, ungranted_slots=90))
    assert admitted(queue, later) == [], "the asked one could not be let in any more when it is granted"
    queue.grant("big")
    assert admitted(queue, planned(queue, prefill_pool(curve=with_a, ungranted_slots=90))) == ["big"]


def test_several_are_asked_for_only_as_they_fit_together() -> None:
    queue = queue_of(*(work(str(number), 300, PREFILL) for number in range(3)))
    assert planned(queue, prefill_pool(ungranted_slots=480)).reserve_first == [0, 1]


def test_what_is_granted_and_has_to_wait_keeps_its_room() -> None:
    queue = queue_of(work("old", 90, PREFILL), work("granted", 600, PREFILL, arrival_s=1))
    queue.ask(1)
    queue.grant("granted")
    full = PeakCurve.of(Joiners.of([399], [0], [0]), now=0)
    assert admitted(queue, planned(queue, prefill_pool(curve=full))) == ["granted"]
    fuller = PeakCurve.of(Joiners.of([400], [0], [0]), now=0)
    assert admitted(queue, planned(queue, prefill_pool(curve=fuller))) == []


def test_no_room_is_asked_for_what_does_not_fit_here() -> None:
    queue = queue_of(work("big", 800, PREFILL))
    decided = planned(queue, prefill_pool(ungranted_slots=480))
    assert decided.reserve_first == []
    assert decided.bypassed == {0: 0}


# ------------------------------------------------------------------------------------------------------------- exact


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 60)), max_size=8),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 3)), max_size=12),
)
def test_plan_equals_the_rule_applied_one_by_one(
    running: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    config = replace(CONFIG, max_bypasses=10_000, scan_limit=100)
    works = [work(str(n), prompt, num_choices=choices) for n, (prompt, choices) in enumerate(waiting)]
    queue = queue_of(*works, config=config)
    curve = PeakCurve.of(Joiners.of([held for held, _ in running], [left for _, left in running]), now=0)
    decided = planned(queue, pool(curve=curve), config=config)

    inside = [(held, left, 1) for held, left in running]
    expected: list[int] = []
    for index, (prompt, choices) in enumerate(waiting):
        trial = [*inside, (prompt, 10, choices)]
        if peak_tokens(*np.array(trial).T) < CONFIG.capacity_slots:
            inside, expected = trial, [*expected, index]
    assert decided.admit == expected


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("field", "value"), [("prompt_tokens", 0), ("num_choices", 0), ("max_new_tokens", -1), ("shared_tokens", -1)]
)
def test_bad_work_is_refused_by_the_name_of_its_field(field: str, value: int) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=field):
        work("a", **wrong)


def test_a_step_budget_below_the_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="step_budget_tokens"):
        RouterConfig(capacity_slots=100, chunk_tokens=200, step_budget_tokens=100)
