"""The controller of the quantile: where it rests, and its bounds."""

import numpy as np
import pytest

from services.router.quantile_control import QuantileConfig, QuantileControl


def test_level_rests_where_preemptions_meet_the_target() -> None:
    control = QuantileControl(QuantileConfig(target=0.05))
    rng = np.random.default_rng(1)
    seen = []
    for _ in range(20_000):
        control.observe(preempted=bool(rng.random() < max(0.0, 0.8 - control.level)))  # 5% at level 0.75
        seen.append(control.level)
    assert np.mean(seen[5000:]) == pytest.approx(0.75, abs=0.02)


def test_level_stays_within_its_bounds() -> None:
    control = QuantileControl(QuantileConfig(floor=0.5, ceiling=0.9))
    for _ in range(200):
        control.observe(preempted=True)
    assert control.level == 0.9
    for _ in range(20_000):
        control.observe(preempted=False)
    assert control.level == 0.5


@pytest.mark.parametrize("bad", [{"floor": 0.9, "start": 0.5}, {"ceiling": 1.0}, {"target": 0.0}, {"gain": 2.0}])
def test_bad_quantile_bounds_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="quantile"):
        QuantileConfig(**bad)
