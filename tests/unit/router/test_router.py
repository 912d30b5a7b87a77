"""The Router against an engine that really steps: nothing starves or leaks, true predictions never run out."""

import asyncio
import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.errors import ContextLengthError, OverloadedError
from services.router import events
from services.router.output_length import LengthConfig
from services.router.router import Outlets, Router
from services.router.work import QueuedWork, RouterConfig, WorkKind
from tests.unit.router.engine_model import EngineModel

CONFIG = RouterConfig(
    capacity_slots=1000,
    max_running=64,
    chunk_tokens=512,
    step_budget_tokens=512,
    extent_slots=1,
    lengths=LengthConfig(prior_tokens=50),
)


def work(key: object, prompt: int = 20, kind: WorkKind = WorkKind.LOCAL, **more: object) -> QueuedWork:
    fields: dict[str, object] = {"arrival_s": 0.0, "prompt_tokens": prompt, "max_new_tokens": 100, **more}
    return QueuedWork(key=key, kind=kind, **fields)  # type: ignore[arg-type]


class Recorder:
    """Outlets that only remember, and a clock that stands still."""

    def __init__(self, config: RouterConfig = CONFIG) -> None:
        self.now_s = 0.0
        self.proposed: list[object] = []
        self.given_up: list[tuple[object, str]] = []
        self.reserve_first: list[object] = []
        self.router = Router(
            config,
            Outlets(
                lambda one: self.proposed.append(one.key),
                lambda one, error: self.given_up.append((one.key, error.message)),
                lambda one: self.reserve_first.append(one.key),
            ),
            clock=lambda: self.now_s,
        )

    def decide(self) -> list[object]:
        """What one plan proposes."""
        self.proposed.clear()
        self.router.decide()
        self.router.check_integrity()
        return list(self.proposed)


# ----------------------------------------------------------------------------------------------- with a stepping engine

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
    for giant in range(50, 400, 100):
        passed = [n for n, at in engine.admitted_at.items() if int(str(n)) > giant and at < engine.admitted_at[giant]]
        assert len(passed) <= 20 + config.max_running


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


# --------------------------------------------------------------------------------------------------------- step by step


def test_an_unanswered_proposal_counts_against_the_pool() -> None:
    recorder = Recorder()
    for number in range(3):
        recorder.router.enqueue(work(number, 400, WorkKind.RESERVATION))
    assert recorder.decide() == [0, 1]
    assert recorder.decide() == []
    recorder.router.tell(events.Gone(0))
    assert recorder.decide() == [2]


def test_a_deferred_proposal_keeps_its_place_and_rests_until_the_engine_says_more() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("first", arrival_s=1))
    assert recorder.decide() == ["first"]
    recorder.router.enqueue(work("second", arrival_s=2))
    recorder.router.tell(events.Deferred("first"))
    assert recorder.decide() == []
    recorder.router.tell(events.Stepped(0.01, 1, 0, held_slots=0))
    assert recorder.decide() == ["first", "second"]


def test_what_others_hold_in_the_engine_counts_until_it_is_released() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("a", 100, WorkKind.RESERVATION))
    recorder.decide()
    recorder.router.tell(events.Admitted("a", held_slots=100))
    recorder.router.tell(events.Stepped(0.01, 0, 0, held_slots=700))
    recorder.router.enqueue(work("b", 300, WorkKind.RESERVATION))
    assert recorder.decide() == []
    recorder.router.tell(events.Idle(held_slots=100))
    assert recorder.decide() == ["b"]


def test_a_shared_prefix_counts_only_as_what_it_added() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("a", 600, WorkKind.RESERVATION))
    recorder.router.enqueue(work("b", 600, WorkKind.RESERVATION))
    assert recorder.decide() == ["a"]
    recorder.router.tell(events.Admitted("a", held_slots=600))
    assert recorder.decide() == []
    recorder.router.cancel("b")
    recorder.router.enqueue(work("c", 600, WorkKind.RESERVATION, shared_tokens=550))
    assert recorder.decide() == ["c"]
    recorder.router.tell(events.Admitted("c", held_slots=50, cached_tokens=550))
    assert recorder.router.load.held_slots == 650


def test_prompts_beyond_the_ungranted_share_are_asked_for_once_and_let_in_when_granted() -> None:
    recorder = Recorder()
    for number in range(3):
        recorder.router.enqueue(work(number, 240, WorkKind.PREFILL))
    assert recorder.decide() == [0, 1]
    assert recorder.reserve_first == [2]
    recorder.router.tell(events.Stepped(0.01, 0, 240, held_slots=0, computed=((0, 0), (1, 0))))
    assert recorder.decide() == []
    assert recorder.reserve_first == [2]
    recorder.router.tell(events.Granted(2))
    assert recorder.decide() == [2]


def test_a_grant_for_one_that_is_in_makes_room_in_the_share() -> None:
    recorder = Recorder()
    for number in range(3):
        recorder.router.enqueue(work(number, 240, WorkKind.PREFILL))
    recorder.decide()
    recorder.router.tell(events.Granted(0))
    recorder.router.tell(events.Stepped(0.01, 0, 240, held_slots=0, computed=((0, 0), (1, 0))))
    assert recorder.decide() == [2]


def test_the_engine_is_fed_two_steps_of_prompts_and_then_as_they_are_computed() -> None:
    recorder = Recorder(replace(CONFIG, chunk_tokens=150, step_budget_tokens=150))
    for number in range(4):
        recorder.router.enqueue(work(number, 150, WorkKind.LOCAL, max_new_tokens=5))
    assert recorder.decide() == [0, 1]
    recorder.router.tell(events.Stepped(0.01, 0, 150, held_slots=0, computed=((0, 0),)))
    assert recorder.decide() == [2]


def test_waiting_work_is_given_up_when_its_queue_budget_runs_out() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("in", 900, WorkKind.RESERVATION, max_new_tokens=50))
    recorder.decide()
    recorder.router.enqueue(work("late", 900, WorkKind.RESERVATION, max_new_tokens=50, queue_deadline_s=5.0))
    recorder.now_s = 4.9
    recorder.decide()
    assert recorder.given_up == []
    recorder.now_s = 5.0
    recorder.decide()
    assert recorder.given_up == [("late", "the queue budget ran out")]
    assert recorder.router.load.num_waiting == 0


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


def test_what_would_never_fit_is_refused_and_a_full_queue_too() -> None:
    recorder = Recorder(replace(CONFIG, max_waiting=1))
    with pytest.raises(ContextLengthError):
        recorder.router.enqueue(work("a", 950))
    recorder.router.enqueue(work("b"))
    with pytest.raises(OverloadedError):
        recorder.router.enqueue(work("c"))


def test_a_known_key_is_refused() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("a"))
    with pytest.raises(KeyError):
        recorder.router.enqueue(work("a"))
    recorder.decide()
    with pytest.raises(KeyError):
        recorder.router.enqueue(work("a"))


def test_cancel_tells_whether_it_was_still_waiting() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("a"))
    assert recorder.router.cancel("a")
    assert not recorder.router.cancel("a")
    recorder.router.enqueue(work("b"))
    recorder.decide()
    assert not recorder.router.cancel("b")
    recorder.router.tell(events.Gone("b"))
    assert recorder.router.load.num_running == 0


@pytest.mark.parametrize(
    "event",
    [
        events.Admitted("x", 5),
        events.Deferred("x"),
        events.Granted("x"),
        events.Started("x"),
        events.Finished("x", 0, 5, natural=True),
        events.Preempted("x"),
        events.Gone("x"),
        events.Stepped(0.01, 0, 5, 0, (("x", 3),)),
    ],
)
def test_late_words_about_unknown_work_change_nothing(event: events.EngineEvent) -> None:
    recorder = Recorder()
    recorder.router.tell(event)
    recorder.router.check_integrity()
    assert recorder.router.load.held_slots == 0


def test_choices_end_one_by_one_and_the_prompt_goes_with_the_last() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("a", 100, WorkKind.RESERVATION, num_choices=2))
    recorder.decide()
    recorder.router.tell(events.Admitted("a", held_slots=100))
    recorder.router.tell(events.Started("a"))
    for _ in range(3):
        recorder.router.tell(events.Stepped(0.01, 2, 0, held_slots=106))
    assert recorder.router.load.held_slots == 106
    recorder.router.tell(events.Finished("a", 0, 3, natural=True))
    assert recorder.router.load.held_slots == 103
    recorder.router.tell(events.Preempted("a", 1))
    assert recorder.router.load.held_slots == 0
    recorder.router.check_integrity()


def test_ratios_say_how_full_and_how_wanted_the_pool_is() -> None:
    recorder = Recorder()
    for number in range(4):
        recorder.router.enqueue(work(number, 450, WorkKind.RESERVATION, max_new_tokens=49))
    recorder.decide()
    load = recorder.router.load
    assert load.admitted_peak_ratio == pytest.approx(0.998)
    assert load.demand_ratio == pytest.approx(1.996)
    assert (load.num_running, load.num_waiting) == (2, 2)


# ------------------------------------------------------------------------------------------------------------- the loop


async def test_run_proposes_as_soon_as_something_happens() -> None:
    proposed: asyncio.Queue[object] = asyncio.Queue()
    router = Router(CONFIG, Outlets(lambda one: proposed.put_nowait(one.key), lambda *_: None, lambda _: None))
    loop = asyncio.create_task(router.run())
    try:
        async with asyncio.timeout(5):
            router.enqueue(work("a", 600))
            assert await proposed.get() == "a"
            router.enqueue(work("b", 600))
            router.tell(events.Admitted("a", 600))
            router.tell(events.Gone("a"))
            assert await proposed.get() == "b"
            router.tell(events.Deferred("b"))
            assert await proposed.get() == "b"  # again, though the engine says nothing more
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


async def test_run_gives_up_at_the_deadline_with_nothing_else_happening() -> None:
    given_up: asyncio.Queue[object] = asyncio.Queue()
    router = Router(CONFIG, Outlets(lambda _: None, lambda one, _: given_up.put_nowait(one.key), lambda _: None))
    loop = asyncio.create_task(router.run())
    try:
        async with asyncio.timeout(5):
            router.enqueue(work("in", 900, WorkKind.RESERVATION, max_new_tokens=50))
            await asyncio.sleep(0)
            soon = asyncio.get_running_loop().time() + 0.05
            router.enqueue(work("late", 900, WorkKind.RESERVATION, max_new_tokens=50, queue_deadline_s=soon))
            assert await given_up.get() == "late"
    finally:
        loop.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop
