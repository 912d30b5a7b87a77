"""What is read from curves."""

from dataclasses import replace

import numpy as np
import pytest

from bench.simulate.figures import Figures, weighted_quantiles
from bench.simulate.sweep import knee_per_s

ONE = Figures(1.0, 1.0, 1.0, [], [], [], [], 0.0, 1, 0.0, 0.0, 0, 0.0, 1.0)


def curve(*points: tuple[float, float]) -> list[Figures]:
    return [replace(ONE, offered_per_s=offered, good_share=share) for offered, share in points]


def test_knee_lies_where_nine_in_ten_are_good() -> None:
    assert knee_per_s(curve((10, 1.0), (20, 0.8), (30, 0.2))) == pytest.approx(15.0)
    assert knee_per_s(curve((10, 1.0), (20, 0.95))) == 20
    assert knee_per_s(curve((10, 0.5))) == 0


def test_weights_count_like_repetition() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0])
    assert weighted_quantiles(values, weights) == [1.0, 1.0, 2.0]
