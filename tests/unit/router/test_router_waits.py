"""What a Router foretells of waits: from time in which something waited, and never about a queue that is gone."""

from dataclasses import replace

import pytest

from services.common.errors import OverloadedError
from services.router import events
from services.router.router import Router
from services.router.work import QueuedWork, WorkKind
from tests.unit.router.engine_model import CONFIG, EngineModel, work
from tests.unit.router.test_router import Recorder


def rate(router: Router) -> float:
    """Slots a second, as measured."""
    return router._outlook.rates.let_in_slots_per_s


def busy_router(last: QueuedWork) -> Recorder:
    """Ten were let in one after the other, one a second, while more waited; now only `last` waits for the pool."""
    recorder = Recorder(replace(CONFIG, join_steps=0))
    for number in range(11):
        recorder.router.enqueue(work(number, 900, WorkKind.RESERVATION, max_new_tokens=50))
    for number in range(11):
        assert recorder.decide() == [number]
        recorder.router.tell(events.Admitted(number, 900))
        if number == 10:
            recorder.router.enqueue(last)
        recorder.now_s += 1.0
        recorder.router.decide()
        if number < 10:
            recorder.router.tell(events.Gone(number))
    assert recorder.router.num_waiting == 1
    assert rate(recorder.router) > 500
    return recorder


@pytest.mark.parametrize("how", ["cancelled", "out of time", "hopeless"])
def test_idle_hours_after_the_last_waiting_one_left_tell_of_no_rate(how: str) -> None:
    recorder = busy_router(work("last", 900, WorkKind.RESERVATION, max_new_tokens=50, queue_deadline_s=11.6))
    if how == "cancelled":
        recorder.router.cancel("last")
    else:
        recorder.now_s = 11.6 if how == "out of time" else 11.3
        recorder.router.decide()
        assert [key for key, _ in recorder.given_up] == ["last"]
    before = rate(recorder.router)
    recorder.now_s += 3600.0
    recorder.router.enqueue(work("next", 900, WorkKind.RESERVATION, max_new_tokens=50))
    recorder.router.decide()
    assert rate(recorder.router) == pytest.approx(before, rel=0.01)


@pytest.mark.parametrize("how", ["cancelled", "let in"])
def test_a_queue_that_is_gone_makes_nobody_wait_who_comes_after_it(how: str) -> None:
    engine = EngineModel(CONFIG)
    for number in range(6):
        engine.lengths[number] = 90
        engine.router.enqueue(work(number, 400, WorkKind.RESERVATION))
    for _ in range(8):
        engine.step()
    assert engine.router.predicted_wait_s > 20
    if how == "cancelled":
        for number in range(2, 6):
            engine.router.cancel(number)
    else:
        engine.run(max_steps=2000)
    assert engine.router.predicted_wait_s == 0
    engine.now_s += 3600.0
    for key in ("x", "y", "z"):  # in one turn: nothing is planned between them
        engine.router.enqueue(work(key, queue_deadline_s=engine.now_s + 10))


def test_what_the_engine_defers_is_let_in_only_once_it_is_taken() -> None:
    recorder = Recorder(replace(CONFIG, max_running=1))
    for key in ("first", "second"):
        recorder.router.enqueue(work(key, 400, WorkKind.RESERVATION))
    for _ in range(100):  # each retry a tenth of a second after the one before
        assert recorder.decide() == ["first"]
        recorder.router.tell(events.Deferred("first"))
        recorder.router.tell(events.Idle(held_slots=0))
        recorder.now_s += 0.1
    assert rate(recorder.router) == 0
    assert recorder.decide() == ["first"]
    recorder.router.tell(events.Admitted("first", 400))
    recorder.router.tell(events.Admitted("first", 400))
    assert 0 < rate(recorder.router) < 100


def test_refusals_still_name_the_wait_of_a_queue_that_stands() -> None:
    engine = EngineModel(CONFIG)
    for number in range(20):
        engine.lengths[number] = 90
        engine.router.enqueue(work(number, 400, WorkKind.RESERVATION))
    for _ in range(8):
        engine.step()
    engine.router.cancel(19)
    with pytest.raises(OverloadedError, match="predicted wait"):
        engine.router.enqueue(work("x", 400, queue_deadline_s=engine.now_s + 10))


def test_a_pool_that_nobody_known_holds_whole_turns_work_away_and_goes_on() -> None:
    recorder = Recorder(CONFIG)
    recorder.router.enqueue(work("first"))
    assert recorder.decide() == ["first"]
    recorder.router.tell(events.Admitted("first", 20))
    for _ in range(4):  # as many as tell how long a step takes
        recorder.router.tell(events.Stepped(1.0, 1, 0, CONFIG.capacity_slots + 20))
    recorder.router.enqueue(work("next", queue_deadline_s=5.0))
    recorder.router.decide()
    assert [key for key, _ in recorder.given_up] == ["next"]
    recorder.router.tell(events.Stepped(1.0, 1, 0, 20))
    recorder.router.enqueue(work("later", queue_deadline_s=5.0))
    assert recorder.decide() == ["later"]
