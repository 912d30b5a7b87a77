"""Pairs of bounds, and the search for the highest rate that keeps them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from bench.simulate.figures import QUANTILES, Figures

P99 = QUANTILES.index(0.99)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the 99th percentiles of a run must keep, in seconds; infinity where nothing is asked."""

    ttft_s: float
    itl_s: float = math.inf
    """Gap between two tokens."""
    tpot_s: float = math.inf
    """A request's mean time between tokens."""

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """From `ttft=1,itl=0.02`. Raises ValueError naming what is wrong."""
        parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
        unknown = set(parts) - {"ttft", "itl", "tpot"}
        if unknown or "ttft" not in parts or len(parts) != len(text.split(",")):
            raise ValueError(f"{text!r}: bounds are ttft=SECONDS and itl=SECONDS or tpot=SECONDS, with commas between")
        return cls(**{f"{name}_s": float(value) for name, value in parts.items()})

    def kept_by(self, figures: Figures) -> bool:
        """Whether a run kept all of them and refused nobody."""
        pairs = ((figures.ttft_s, self.ttft_s), (figures.itl_s, self.itl_s), (figures.tpot_s, self.tpot_s))
        return figures.refused_share == 0 and all(values[P99] <= most for values, most in pairs)

    def __str__(self) -> str:
        named = (("TTFT", self.ttft_s), ("ITL", self.itl_s), ("TPOT", self.tpot_s))
        return ", ".join(f"{name} p99 <= {1e3 * most:g} ms" for name, most in named if most < math.inf)


def highest_rate(measure: Callable[[float], Figures], bounds: Bounds, low: float, high: float, runs: int) -> float:
    """Bisect for the highest rate in [low, high] that keeps the bounds, with at most `runs` measurements; 0 when `low`
    does not keep them. `measure` is called with rates and may answer from memory.
    """
    if not bounds.kept_by(measure(low)):
        return 0.0
    if bounds.kept_by(measure(high)):
        return high
    for _ in range(runs - 2):
        middle = (low + high) / 2
        if bounds.kept_by(measure(middle)):
            low = middle
        else:
            high = middle
    return low
