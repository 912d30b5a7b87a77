"""How long waiting work is expected to wait."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.peak_memory import Joiners, PeakCurve
from services.router.wait_time import Backlog, Rates, predicted_waits_s


def waits(curve: PeakCurve, peaks: list[int], rates: Rates, *, compute: int = 0, computing: int = 0) -> list[float]:
    """For entries that hold `peaks` slots and grow no more, in a pool of 1000."""
    joiners = Joiners.of(peaks, [0] * len(peaks), [0] * len(peaks))
    backlog = Backlog(joiners, np.full(len(peaks), compute, dtype=np.int64), computing)
    return [float(wait_s) for wait_s in predicted_waits_s(curve, backlog, 1000, rates)]


def pool(held: int, left: int) -> PeakCurve:
    """One request that grows by one a step."""
    return PeakCurve.of(Joiners.of([held], [left], [1]), now=0)


def rates_of(slots: int, seconds: float) -> Rates:
    """As after so many slots were let in over so long, once a second."""
    rates = Rates(step_s=0.01)
    for second in range(int(seconds) + 1):
        rates.planned(float(second), more_waits=True)
        rates.let_in(round(slots / seconds) if second else 0)
    return rates


def test_prompts_ahead_wait_for_compute_less_what_caches_hold() -> None:
    rates = Rates(compute_tokens_per_s=100.0)
    assert waits(pool(0, 0), [1, 1], rates, compute=200, computing=50) == [0.5, 2.5, 4.5]
    for _ in range(200):
        rates.admitted(1000, 500)
    assert rates.missing_share == pytest.approx(0.5, abs=0.01)
    assert waits(pool(0, 0), [1, 1], rates, compute=200, computing=50) == pytest.approx([0.5, 1.5, 2.5], abs=0.05)


def test_work_beyond_the_pool_waits_at_the_rate_at_which_it_was_let_in() -> None:
    assert waits(pool(500, 450), [200, 200], rates_of(9000, 30)) == pytest.approx([0.5, 7 / 6, 11 / 6], rel=0.01)


def test_nobody_waits_longer_than_until_the_curve_has_room_for_all_ahead() -> None:
    slow = rates_of(300, 30)
    assert waits(pool(500, 450), [200, 200], slow) == pytest.approx([4.5, 4.5, 4.5])
    prefill = rates_of(300, 30)
    prefill.step_s = 0.0  # nothing decodes here: the curve tells no time
    assert waits(pool(500, 450), [200, 200], prefill) == pytest.approx([15, 35, 55], rel=0.01)


def test_what_fits_beside_all_ahead_of_it_does_not_wait() -> None:
    assert waits(pool(100, 50), [200, 200], rates_of(3000, 30)) == [0.0, 0.0, 0.0]


def test_before_a_rate_is_known_the_curve_tells_when_the_pool_has_room() -> None:
    assert waits(pool(900, 50), [200], Rates(step_s=0.01)) == pytest.approx([0.5, 0.5])


def test_time_in_which_nothing_waited_tells_of_no_rate() -> None:
    rates = rates_of(3000, 30)
    before = rates.let_in_slots_per_s
    rates.planned(31.0, more_waits=False)
    rates.planned(500.0, more_waits=True)
    rates.planned(501.0, more_waits=True)
    rates.let_in(100)
    assert rates.let_in_slots_per_s == pytest.approx(before, rel=0.1)


def test_a_single_burst_is_no_rate_yet() -> None:
    rates = Rates()
    rates.planned(0.0, more_waits=True)
    rates.planned(0.1, more_waits=True)
    rates.let_in(10_000)
    assert rates.let_in_slots_per_s == 0


def test_the_first_slow_step_of_a_new_engine_is_no_speed_yet() -> None:
    rates = Rates()
    rates.stepped(5.0, num_prefill_tokens=64, num_decode_rows=1)
    assert waits(pool(900, 50), [200], rates, compute=600, computing=600) == [0.0, 0.0]
    for _ in range(3):
        rates.stepped(0.1, num_prefill_tokens=64, num_decode_rows=1)
    assert rates.step_s == pytest.approx(0.175)
    assert rates.compute_tokens_per_s == pytest.approx(64 / 0.175)


def test_a_pause_hardly_changes_the_speed_and_a_lasting_change_does() -> None:
    rates = Rates()
    for _ in range(50):
        rates.stepped(0.1, num_prefill_tokens=64, num_decode_rows=1)
    rates.stepped(8.0, num_prefill_tokens=64, num_decode_rows=1)
    assert rates.step_s == pytest.approx(0.1, rel=0.2)
    for _ in range(16):
        rates.stepped(0.5, num_prefill_tokens=64, num_decode_rows=1)
    assert rates.step_s == pytest.approx(0.5)
    assert rates.compute_tokens_per_s == pytest.approx(128)


entries = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 500), st.integers(0, 3)), max_size=12)
speeds = st.one_of(st.just(0.0), st.floats(1.0, 1e6))


@pytest.mark.filterwarnings("error")
@settings(max_examples=200, deadline=None)
@given(entries, entries, st.integers(-50, 1000), st.floats(0.0, 10.0), speeds, st.booleans())
def test_whatever_the_pool_holds_waits_are_numbers_and_not_negative(
    inside: list[tuple[int, int, int]],
    waiting: list[tuple[int, int, int]],
    capacity: int,
    step_s: float,
    compute_tokens_per_s: float,
    is_rate_known: bool,
) -> None:
    held = np.array([one[0] for one in waiting], dtype=np.int64)
    joiners = Joiners.of(held, [one[1] for one in waiting], [one[2] for one in waiting])
    curve = PeakCurve.of(
        Joiners.of([one[0] for one in inside], [one[1] for one in inside], [one[2] for one in inside]), 7
    )
    rates = rates_of(3000, 30) if is_rate_known else Rates()
    rates.step_s, rates.compute_tokens_per_s = step_s, compute_tokens_per_s
    waits_s = predicted_waits_s(curve, Backlog(joiners, held, 10), capacity, rates)
    assert len(waits_s) == len(waiting) + 1
    assert np.isfinite(waits_s).all()
    assert (waits_s >= 0).all()
