"""Predicted output lengths: life table, conditioning, thin evidence, keys, and the quantile's controller."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.output_length import ALL, LengthConfig, OutputLengths, Sequences, levels, place_of


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def sequences(produced: list[int], max_new: int = 10_000, unit: float = 0.5, group: int = ALL) -> Sequences:
    count = len(produced)
    return Sequences(
        produced=ints(*produced),
        min_new=np.zeros(count, dtype=np.int64),
        max_new=np.full(count, max_new, dtype=np.int64),
        unit=np.full(count, unit),
        group=np.full(count, group, dtype=np.int64),
    )


def learned(lengths: list[int], group: int = ALL, natural: bool = True, **config: int) -> OutputLengths:
    known = OutputLengths(LengthConfig(**config))
    for length in lengths:
        known.observe(length, now=0, group=group, natural=natural)
    known.refresh(ints(), ints(), now=0)
    return known


def test_running_sequences_keep_lengths_from_being_taken_short() -> None:
    rng = np.random.default_rng(3)
    true = rng.geometric(1 / 400, 4000)
    started = np.sort(rng.integers(0, 300, 4000))
    now = 300  # shorter than most outputs: those that ended so far are the short ones
    ended = started + true <= now
    known = OutputLengths(LengthConfig(window=5000))
    for length, end in zip(true[ended], (started + true)[ended], strict=True):
        known.observe(int(length), int(end), natural=True)
    running = (now - started)[~ended]
    known.refresh(ints(), ints(), now)
    naive = int(known.remaining(sequences([0]), 0.4)[0])
    known.refresh(running, np.zeros_like(running), now)
    informed = int(known.remaining(sequences([0]), 0.4)[0])
    expected = -400 * np.log(0.6)
    assert naive < 0.5 * expected
    assert informed == pytest.approx(expected, rel=0.15)


def test_a_full_window_stays_unbiased_in_steady_state() -> None:
    rng = np.random.default_rng(5)
    known = OutputLengths(LengthConfig(window=500))
    live: list[list[int]] = []
    for step in range(3000):
        live.extend([step, int(length)] for length in rng.geometric(1 / 200, 2))
        for start, length in [one for one in live if step - one[0] >= one[1]]:
            known.observe(length, step, natural=True)
            live.remove([start, length])
    produced = ints(*[3000 - start for start, _ in live])
    known.refresh(produced, np.zeros_like(produced), now=3000)
    median = int(known.remaining(sequences([0]), 0.5)[0])
    assert median == pytest.approx(200 * np.log(2), rel=0.2)


def test_outputs_cut_by_their_limit_count_as_longer_than_it() -> None:
    known = learned([50] * 100, natural=False)
    assert known.remaining(sequences([0], max_new=700), 0.5).tolist() == [512]
    mixed = OutputLengths(LengthConfig())
    for _ in range(100):
        mixed.observe(50, 0, natural=False)
        mixed.observe(80, 0, natural=True)
    mixed.refresh(ints(), ints(), 0)
    assert mixed.remaining(sequences([0]), 0.5).tolist() == [80]


def test_prediction_given_what_was_produced_outlives_it() -> None:
    known = learned(list(range(1, 401)))
    left = known.remaining(sequences([0, 100, 300, 370]), 0.5)
    assert left.tolist() == [200, 150, 50, 15]


@pytest.mark.parametrize(
    ("produced", "expected"), [(0, 512), (200, 312), (400, 400), (512, 512), (1000, 1000), (9_990, 10)]
)
def test_thin_evidence_falls_back_to_the_prior_then_doubles(produced: int, expected: int) -> None:
    known = learned([5] * 10)
    assert known.remaining(sequences([produced]), 0.5).tolist() == [expected]


def test_beyond_what_few_have_reached_the_prior_holds() -> None:
    known = learned([10] * 500 + [2000] * 5)
    assert known.remaining(sequences([0, 50]), 0.5).tolist() == [10, 462]


def test_limits_cap_the_prediction_from_both_sides() -> None:
    known = learned([100] * 200)
    asked = sequences([0, 0, 30, 30])
    asked.max_new[:] = [40, 1000, 30, 20]
    asked.min_new[:] = [0, 900, 0, 0]
    assert known.remaining(asked, 0.5).tolist() == [40, 900, 0, 0]


def test_a_key_with_enough_evidence_is_predicted_from_its_own() -> None:
    known = OutputLengths(LengthConfig(min_key_evidence=50))
    short, rare = known.group("short"), known.group("rare")
    for _ in range(60):
        known.observe(10, 0, short, natural=True)
        known.observe(1000, 0, natural=True)
        known.observe(1000, 0, natural=True)
    known.observe(10, 0, rare, natural=True)
    known.refresh(ints(), ints(), 0)
    assert known.remaining(sequences([0], group=short), 0.5).tolist() == [10]
    assert known.remaining(sequences([0], group=rare), 0.5).tolist() == [1000]
    assert known.remaining(sequences([0]), 0.5).tolist() == [1000]


def test_number_of_keys_is_bounded_and_the_longest_unused_is_forgotten() -> None:
    known = OutputLengths(LengthConfig(max_keys=2))
    first, second = known.group("a"), known.group("b")
    assert known.group("a") == first
    assert known.group("c") == second
    assert {known.group(""), first, second} == {0, 1, 2}


@given(st.floats(0.05, 0.95))
def test_levels_average_to_the_level_and_stay_inside(level: float) -> None:
    unit = np.array([place_of(number) for number in range(2000)])
    own = levels(level, unit)
    assert own.min() > 0
    assert own.max() < 1
    assert own.mean() == pytest.approx(level, abs=0.01)


def test_spread_levels_do_not_make_all_sequences_end_together() -> None:
    known = learned(list(np.random.default_rng(0).geometric(1 / 300, 2000)))
    count = 200
    asked = sequences([50] * count)
    asked.unit[:] = [place_of(number) for number in range(count)]
    left = known.remaining(asked, 0.5)
    assert np.mean(left) == pytest.approx(300, rel=0.15)
    assert np.std(left) == pytest.approx(300, rel=0.2)
