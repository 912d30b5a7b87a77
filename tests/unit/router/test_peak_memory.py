"""`peak_tokens` and `PeakCurve` against a simulation that really steps, token by token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.peak_memory import Joiners, PeakCurve, peak_tokens

Entry = tuple[int, int, int]
"""held, left, growth"""

entries = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.integers(0, 3)), max_size=14)


def simulated_peak(load: list[Entry]) -> int:
    """Occupancy at every step, each request growing until its end and then freeing all."""
    occupied = list(load)
    worst = sum(held for held, _, _ in occupied)
    while occupied:
        occupied = [(held + growth, left - 1, growth) for held, left, growth in occupied if left > 0]
        worst = max(worst, sum(held for held, _, _ in occupied))
    return worst


def joiners(load: list[Entry]) -> Joiners:
    """The load as arrays."""
    return Joiners.of([e[0] for e in load], [e[1] for e in load], [e[2] for e in load])


@settings(max_examples=400, deadline=None)
@given(entries)
def test_peak_equals_a_token_by_token_simulation(load: list[Entry]) -> None:
    assert peak_tokens(*(np.array(load, dtype=np.int64).reshape(-1, 3).T)) == simulated_peak(load)


def test_peak_equals_simulation_on_thousands_of_random_loads() -> None:
    rng = np.random.default_rng(7)
    for _ in range(3000):
        count = int(rng.integers(0, 12))
        held, left = rng.integers(0, 200, count), rng.integers(0, 40, count)
        load = [(int(h), int(t), 1) for h, t in zip(held, left, strict=True)]
        assert peak_tokens(held, left) == simulated_peak(load)


@settings(max_examples=400, deadline=None)
@given(entries, entries, st.integers(0, 1000))
def test_what_if_answers_equal_the_peak_of_the_whole_load(base: list[Entry], new: list[Entry], now: int) -> None:
    curve = PeakCurve.of(joiners(base), now)
    assert curve.peak_with(joiners(new)) == simulated_peak(base + new)
    assert curve.joined_by(joiners(new)).peak == simulated_peak(base + new)


@settings(max_examples=400, deadline=None)
@given(entries, st.integers(0, 60), st.integers(0, 25), st.integers(0, 1000))
def test_what_if_of_one_equals_the_peak_of_the_whole_load(base: list[Entry], held: int, left: int, now: int) -> None:
    assert PeakCurve.of(joiners(base), now).peak_with_one(held, left) == simulated_peak([*base, (held, left, 1)])


@settings(max_examples=300, deadline=None)
@given(entries, entries, st.integers(1, 600))
def test_what_might_fit_leaves_out_only_what_cannot(base: list[Entry], new: list[Entry], capacity: int) -> None:
    might = PeakCurve.of(joiners(base), now=3).might_fit(joiners(new), capacity)
    for one, answer in zip(new, might.tolist(), strict=True):
        fits = simulated_peak([*base, one]) < capacity
        assert answer or not fits
        if one[2] == 1:
            assert answer == fits


@settings(max_examples=300, deadline=None)
@given(entries, entries, st.integers(1, 600))
def test_number_that_fit_is_the_longest_prefix(base: list[Entry], new: list[Entry], capacity: int) -> None:
    curve = PeakCurve.of(joiners(base), now=3)
    peaks = [simulated_peak(base + new[: count + 1]) for count in range(len(new))]
    expected = next((count for count, peak in enumerate(peaks) if peak >= capacity), len(new))
    assert curve.num_that_fit(joiners(new), capacity) == expected


@settings(max_examples=300, deadline=None)
@given(entries, st.integers(0, 30))
def test_curve_of_a_later_step_counts_what_outlived_its_end_as_ending_now(load: list[Entry], steps: int) -> None:
    later = PeakCurve.of(joiners(load), now=0).at(steps)
    still = [(held + growth * steps, max(left - steps, 0), growth) for held, left, growth in load]
    if all(left >= steps for _, left, _ in load):
        assert later.peak == simulated_peak(still)
        assert later.peak_with_one(5, 4) == simulated_peak([*still, (5, 4, 1)])
    else:
        assert later.peak == simulated_peak(still)


@pytest.mark.parametrize(
    ("held", "left", "growth", "message"),
    [
        ([1, 2], [3], None, "left: expected shape"),
        ([-1], [3], None, "held: expected no negative"),
        ([1], [-3], None, "left: expected no negative"),
        ([1], [3], [-1], "growth: expected no negative"),
    ],
)
def test_bad_loads_are_refused_by_name(
    held: list[int], left: list[int], growth: list[int] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        peak_tokens(held, left, growth)
