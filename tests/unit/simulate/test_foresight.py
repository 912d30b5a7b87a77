"""Room that is wanted and given, first come first served, and giants that start when it hurts least."""

import pytest

from bench.simulate.foresight import Want, best_starts, waits_s, wants_of
from bench.simulate.story import Story
from bench.simulate.trace import Arrival


def test_whoever_finds_no_room_waits_in_turn_until_enough_has_left() -> None:
    wants = [Want(0.0, 60, 10.0), Want(1.0, 50, 1.0), Want(2.0, 10, 1.0)]
    assert waits_s(wants, [], 100) == [0.0, 9.0, 8.0]


def test_a_giant_gets_what_comes_free_before_small_ones_that_asked_earlier() -> None:
    small = [Want(0.0, 60, 10.0), Want(1.0, 60, 1.0), Want(2.0, 60, 1.0)]
    assert waits_s(small, [Want(3.0, 90, 5.0)], 100) == [0.0, 14.0, 14.0]


def test_a_giant_waits_for_the_moment_in_which_it_delays_nobody() -> None:
    burst = [Want(1.0 + number / 10, 20, 0.9) for number in range(5)]
    giants = [Want(0.5, 90, 1.0), Want(20.0, 90, 1.0)]
    assert max(waits_s(burst, giants, 100)) > 0.4
    (first, second) = best_starts(burst, giants, 100, patience_s=4.0, most_s=0.1)
    assert max(waits_s(burst, [first, second], 100)) == 0.0
    assert (first.since_s, second.since_s) == (1.5, 20.0), "once the last of them has room"


def test_wants_are_of_those_that_finished_in_the_order_in_which_they_asked() -> None:
    def story(reserved_s: float, finished_s: float | None) -> Story:
        one = Story(0, Arrival(0.0, 100, 40), 100)
        one.reserved_s, one.granted_s, one.finished_s = reserved_s, reserved_s + 1.0, finished_s
        return one

    wants = wants_of([story(5.0, 8.0), story(1.0, 2.5), story(2.0, None)])
    assert [(want.since_s, want.slots) for want in wants] == [(1.0, 120), (5.0, 120)]
    assert [want.stay_s for want in wants] == pytest.approx([0.5, 2.0])
