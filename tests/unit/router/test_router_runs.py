"""The Router against an engine that really steps: nothing starves or leaks, true predictions never run out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import ContextLengthError, OverloadedError
from services.router.output_length import LengthConfig
from services.router.work import WorkKind
from tests.unit.router.engine_model import CONFIG, EngineModel, work

loads = st.lists(
    st.tuples(
        st.integers(1, 300),  # prompt
        st.integers(1, 100),  # true length
        st.integers(1, 3),  # choices
        st.sampled_from([WorkKind.LOCAL, WorkKind.RESERVATION]),
        st.integers(0, 30),  # steps before it arrives
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(loads, st.sampled_from([1, 8]))
def test_with_true_predictions_nothing_is_preempted_or_deferred(
    load: list[tuple[int, int, int, WorkKind, int]], extent: int
) -> None:
    engine = EngineModel(replace(CONFIG, extent_slots=extent))
    for number, (prompt, length, choices, kind, wait) in enumerate(load):
        engine.lengths[number] = length
        asked = work(number, prompt, kind, num_choices=choices, max_new_tokens=length, min_new_tokens=length)
        engine.router.enqueue(replace(asked, arrival_s=engine.now_s))
        for _ in range(wait):
            engine.step()
    engine.run(max_steps=20_000)
    assert engine.worst_held <= CONFIG.capacity_slots
    assert (engine.num_preempted, engine.num_deferred) == (0, 0)
    assert engine.finished == {number: choices for number, (_, _, choices, _, _) in enumerate(load)}


@settings(max_examples=60, deadline=None)
@given(loads, st.integers(1, 99))
def test_nothing_starves_or_leaks_when_predictions_are_wrong(
    load: list[tuple[int, int, int, WorkKind, int]], prior: int
) -> None:
    engine = EngineModel(replace(CONFIG, lengths=LengthConfig(prior_tokens=prior, min_evidence=5)))
    for number, (prompt, length, choices, kind, wait) in enumerate(load):
        engine.lengths[number] = length
        engine.router.enqueue(work(number, prompt, kind, num_choices=choices, arrival_s=engine.now_s))
        for _ in range(wait):
            engine.step()
    engine.run(max_steps=20_000)
    assert engine.worst_held <= CONFIG.capacity_slots
    assert engine.finished == {number: choices for number, (_, _, choices, _, _) in enumerate(load)}
    assert engine.router.load.held_slots == 0
    assert engine.router.load.num_running == 0


hard_loads = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 60), st.integers(500, 1000)),  # prompt
        st.integers(1, 40),  # true length
        st.integers(1, 10),  # choices
        st.integers(-2, 2),  # priority
        st.sampled_from([WorkKind.LOCAL, WorkKind.RESERVATION, WorkKind.PREFILL]),
        st.integers(0, 10),  # steps before it arrives
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(hard_loads, st.integers(1, 60))
def test_whatever_is_queued_is_let_in_however_large_however_unimportant_and_with_however_many_choices(
    load: list[tuple[int, int, int, int, WorkKind, int]], prior: int
) -> None:
    config = replace(CONFIG, max_running=8, max_bypasses=3, max_bypass_s=5.0, ungranted_share=1.0)
    engine = EngineModel(replace(config, lengths=LengthConfig(prior_tokens=prior, min_evidence=5)))
    expected = {}
    for number, (prompt, length, choices, priority, kind, wait) in enumerate(load):
        engine.lengths[number] = length
        asked = work(number, prompt, kind, num_choices=choices, priority=priority, arrival_s=engine.now_s)
        try:
            engine.router.enqueue(asked)
        except ContextLengthError:
            assert choices > config.max_running or prompt + choices * 100 >= config.capacity_slots or prompt == 1000
        else:
            expected[number] = choices if asked.grows else 0
        for _ in range(wait):
            engine.step()
    engine.run(max_steps=20_000)
    assert engine.finished == expected
    assert engine.worst_held <= CONFIG.capacity_slots


def test_giants_are_let_in_within_their_bound_under_a_stream_of_small_ones() -> None:
    config = replace(CONFIG, max_bypasses=20, max_bypass_s=1e9)
    engine = EngineModel(config)
    for number in range(400):
        giant = number % 100 == 50
        engine.lengths[number] = 40
        prompt = 850 if giant else 60
        engine.router.enqueue(work(number, prompt, WorkKind.RESERVATION, arrival_s=engine.now_s))
        engine.step()
        engine.step()
    engine.run(max_steps=5000)
    for big in range(50, 400, 100):
        passed = [key for key, at in engine.admitted_at.items() if int(str(key)) > big and at < engine.admitted_at[big]]
        assert len(passed) <= config.max_bypasses


def test_an_unimportant_giant_waits_for_its_levels_of_age_and_its_patience_under_a_flood_of_important_small_ones() -> (
    None
):
    config = replace(CONFIG, max_bypasses=20, max_bypass_s=1e9, priority_step_s=50.0)
    engine, came_s = EngineModel(config), {}
    for number in range(200):
        giant = number == 50
        engine.lengths[number], came_s[number] = 40, engine.now_s
        prompt, priority = (850, 2) if giant else (60, 0)
        asked = work(number, prompt, WorkKind.RESERVATION, arrival_s=engine.now_s, priority=priority)
        engine.router.enqueue(asked)
        for _ in range(3):
            engine.step()
    assert 50 in engine.admitted_at, "let in while the flood goes on"
    younger_s = came_s[50] + 2 * config.priority_step_s
    passed = [
        key
        for key, at in engine.admitted_at.items()
        if came_s[int(str(key))] > younger_s and at < engine.admitted_at[50]
    ]
    assert len(passed) <= config.max_bypasses


def test_learned_lengths_fill_the_pool_with_few_preemptions() -> None:
    rng = np.random.default_rng(11)
    config = replace(CONFIG, capacity_slots=40_000, max_running=4000, extent_slots=8)
    engine = EngineModel(config)
    held, number = [], 0
    for step in range(2000):
        while engine.router.num_waiting < 5:
            engine.lengths[number] = int(min(rng.lognormal(4.5, 0.9), 1999)) + 1
            kind = WorkKind.RESERVATION
            engine.router.enqueue(work(number, int(rng.integers(10, 300)), kind, arrival_s=step, max_new_tokens=2000))
            number += 1
        engine.step()
        held.append(engine.held)
    finished = len(engine.finished)
    assert np.mean(held[1000:]) > 0.93 * config.capacity_slots
    assert engine.num_preempted < 0.015 * finished


def test_work_that_cannot_meet_its_budget_is_refused_early_with_retry_after() -> None:
    engine = EngineModel(replace(CONFIG, lengths=LengthConfig(prior_tokens=90)))
    for number in range(20):
        engine.lengths[number] = 90
        engine.router.enqueue(work(number, 400, WorkKind.RESERVATION))
    for _ in range(6):
        engine.step()
    engine.router.decide()
    wait_s = engine.router.load.predicted_wait_s
    assert wait_s > 300  # two at a time, 90 steps of a second each
    with pytest.raises(OverloadedError) as refused:
        engine.router.enqueue(work("x", 400, queue_deadline_s=engine.now_s + 10))
    assert refused.value.retry_after_s == 60


def test_a_queue_that_was_given_up_whole_refuses_nobody_after_it() -> None:
    engine = EngineModel(replace(CONFIG, lengths=LengthConfig(prior_tokens=90)))
    for number in range(2):
        engine.lengths[number] = 90
        engine.router.enqueue(work(number, 400, WorkKind.RESERVATION))
    for _ in range(6):
        engine.step()
    for number in range(2, 6):
        engine.router.enqueue(work(number, 400, queue_deadline_s=engine.now_s + 10))
    engine.router.decide()  # they would wait 80 s
    assert len(engine.given_up) == 4
    engine.router.enqueue(work("x", 400, queue_deadline_s=engine.now_s + 10))


def test_predicted_wait_is_near_the_true_one() -> None:
    engine = EngineModel(CONFIG)
    for number in range(21):
        engine.lengths[number] = 80
        asked = work(number, 400, WorkKind.RESERVATION, max_new_tokens=80, min_new_tokens=80)
        engine.router.enqueue(asked)
    for _ in range(6):
        engine.step()
    predicted = engine.router.load.predicted_wait_s
    engine.run(max_steps=2000)
    assert predicted == pytest.approx(engine.admitted_at[20], rel=0.35)
