"""The Router step by step: what it is told, what it proposes, what it gives up, and its loop."""

from dataclasses import replace

import pytest

from services.common.errors import ContextLengthError, OverloadedError
from services.router import events
from services.router.router import Outlets, Router
from services.router.work import QueuedWork, RouterConfig, WorkKind
from tests.unit.router.engine_model import CONFIG, work


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


def test_a_prompt_that_is_granted_waits_for_none_that_wait_for_the_same_decode_worker() -> None:
    recorder = Recorder()
    recorder.router.enqueue(work("large", 600, WorkKind.PREFILL))
    assert (recorder.decide(), recorder.reserve_first) == ([], ["large"])
    for number in range(3):
        recorder.router.enqueue(work(number, 240, WorkKind.PREFILL))
    assert recorder.decide() == [0]
    recorder.router.tell(events.Stepped(0.01, 0, 240, held_slots=0, computed=((0, 0),)))
    assert recorder.decide() == []
    recorder.router.tell(events.Granted("large"))
    assert recorder.decide() == ["large"]


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


def test_answers_from_within_a_decision_are_taken() -> None:
    recorder = Recorder()
    again = iter(["d", "e"])

    def give_up(one: QueuedWork, _: object) -> None:
        recorder.given_up.append((one.key, ""))
        router.cancel("c")
        router.enqueue(work(next(again), 900, WorkKind.RESERVATION, max_new_tokens=50))

    router = Router(CONFIG, Outlets(lambda one: router.tell(events.Admitted(one.key, 900)), give_up, lambda _: None),
                    clock=lambda: recorder.now_s)  # fmt: skip
    for key, deadline_s in (("in", 99.0), ("a", 5.0), ("b", 5.0), ("c", 99.0)):
        router.enqueue(work(key, 900, WorkKind.RESERVATION, max_new_tokens=50, queue_deadline_s=deadline_s))
    router.decide()
    recorder.now_s = 6.0
    router.decide()
    router.check_integrity()
    assert sorted(str(key) for key, _ in recorder.given_up) == ["a", "b"]
    assert router.num_waiting == 2


def test_room_to_grow_into_is_counted_once() -> None:
    recorder = Recorder(replace(CONFIG, extent_slots=32))
    recorder.router.enqueue(work("a", 100, WorkKind.RESERVATION))
    recorder.decide()
    recorder.router.tell(events.Admitted("a", held_slots=132))  # the prompt and one extent
    assert recorder.router.load.held_slots == 132


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
    recorder = Recorder(replace(CONFIG, join_steps=0))
    for number in range(4):
        recorder.router.enqueue(work(number, 450, WorkKind.RESERVATION, max_new_tokens=49))
    recorder.decide()
    load = recorder.router.load
    assert load.admitted_peak_ratio == pytest.approx(0.998)
    assert load.demand_ratio == pytest.approx(1.996)
    assert (load.num_running, load.num_waiting) == (2, 2)
