"""The life table: quantiles of the sample, conditioning, censoring, delayed entry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.peak_memory import IntArray
from services.router.survival import NEVER, SurvivalCurve


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def survival(length: list[int], ended: list[bool], entry: list[int] | None = None) -> SurvivalCurve:
    return SurvivalCurve.of(ints(*length), ints(*(entry or [0] * len(length))), np.array(ended, dtype=np.bool_))


def test_without_censoring_quantiles_are_those_of_the_sample() -> None:
    curve = survival(list(range(1, 101)), [True] * 100)
    levels_asked = np.array([0.1, 0.5, 0.9, 0.99])
    assert curve.quantile(levels_asked, ints(0, 0, 0, 0))[0].tolist() == [10, 50, 90, 99]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(0, 49), st.floats(0.05, 0.95))
def test_conditioned_quantile_equals_that_of_the_longer_outputs_alone(
    lengths: list[int], produced: int, level: float
) -> None:
    curve = survival(lengths, [True] * len(lengths))
    longer = sorted(length for length in lengths if length > produced)
    if not longer:
        assert curve.quantile(np.array([level]), ints(produced))[1].tolist() == [0]
        return
    found = int(curve.quantile(np.array([level]), ints(produced))[0][0])
    below = sum(length < found for length in longer) / len(longer)
    up_to = sum(length <= found for length in longer) / len(longer)
    assert found in longer
    assert below <= level + 1e-9
    assert up_to >= level - 1e-9


def test_kaplan_meier_by_hand() -> None:
    # Of 5, one ends at 2, one is cut at 3, one ends at 4, two run on at 6: S(2) = 4/5, S(4) = 4/5 * 2/3.
    curve = survival([2, 3, 4, 6, 6], [True, False, True, False, False])
    assert curve.lengths.tolist() == [2, 4]
    assert curve.passing.tolist() == [5, 3, 0]
    assert curve.survival.tolist() == pytest.approx([1, 0.8, 0.8 * 2 / 3])
    assert curve.quantile(np.array([0.9]), ints(0))[0].tolist() == [NEVER]


def test_those_under_way_when_the_period_began_count_only_from_there() -> None:
    # The second was at 10 already: it was never at risk of ending at 5.
    curve = survival([5, 20], [True, True], entry=[0, 10])
    assert curve.passing.tolist() == [1, 1, 0]
