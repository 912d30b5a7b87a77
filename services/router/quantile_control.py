"""The quantile of output lengths to plan with, moved by how often sequences are preempted.

A quantile tracker (as in adaptive conformal inference, Gibbs & Candes 2021): each sequence that ends moves the level by
`gain * (preempted - target)`. It rests where the share of sequences preempted equals the target, whatever the lengths
are like. The level stays within [floor, ceiling]: at 0.5 lengths are taken as they are likely to be, and anything
below would plan to run out; the ceiling keeps one burst of preemptions from emptying the pool. A preemption moves it
up by less than `gain`, a quiet sequence down by `gain * target`, so it climbs over tens of preemptions and comes down
over thousands of quiet sequences.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuantileConfig:
    """Bounds and speed. 0 < floor <= start <= ceiling < 1."""

    start: float = 0.6
    floor: float = 0.5
    ceiling: float = 0.95
    target: float = 0.005
    """Share of sequences that may be preempted."""
    gain: float = 0.005
    """Small, since one misjudged moment preempts several at once: a burst must not empty the pool for thousands."""

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.start <= self.ceiling < 1:
            raise ValueError(f"quantile: expected 0 < floor <= start <= ceiling < 1, got {self}")
        if not (0 < self.target < 1 and 0 < self.gain < 1):
            raise ValueError(f"quantile: expected target and gain between 0 and 1, got {self}")


class QuantileControl:
    """Holds the level. One per Router."""

    def __init__(self, config: QuantileConfig) -> None:
        self._config = config
        self.level = config.start

    def observe(self, *, preempted: bool) -> None:
        """A sequence was preempted, or ended without that."""
        moved = self.level + self._config.gain * (float(preempted) - self._config.target)
        self.level = min(max(moved, self._config.floor), self._config.ceiling)
