"""Many runs: one line of figures each, and what can be said of a curve of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bench.simulate.figures import Figures, Slo
from bench.simulate.fleet import Setup
from bench.simulate.measure import figures_of, simulate
from bench.simulate.trace import Arrival, scaled

ATTAINED = 0.9
"""The knee is the highest load at which this share of requests keeps both bounds."""


@dataclass(frozen=True, slots=True)
class Line:
    """One run of a comparison."""

    name: str
    """Of what is compared: a rule, a selector, a ratio."""
    figures: Figures

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"name": self.name, **asdict(self.figures)}


def sweep(setups: dict[str, Setup], rates: Iterable[float], arrivals: list[Arrival], slo: Slo) -> Iterator[Line]:
    """Every setup at every rate of the same arrivals, as they are done."""
    for rate in rates:
        at_rate = scaled(arrivals, rate)
        for name, setup in setups.items():
            yield Line(name, figures_of(simulate(setup, at_rate), slo))


def curves(lines: Iterable[Line]) -> dict[str, list[Figures]]:
    """By name, in the order of the load."""
    by_name: dict[str, list[Figures]] = {}
    for line in lines:
        by_name.setdefault(line.name, []).append(line.figures)
    return {name: sorted(each, key=lambda one: one.offered_per_s) for name, each in by_name.items()}


def knee_per_s(curve: list[Figures]) -> float:
    """The load up to which ATTAINED of the requests are good, between two measured loads by their line; 0 if none.

    The last load where all of them are: the curve was not followed to its knee.
    """
    last: Figures | None = None
    for one in curve:
        if one.good_share < ATTAINED:
            if last is None:
                return 0.0
            part = (last.good_share - ATTAINED) / (last.good_share - one.good_share)
            return last.offered_per_s + part * (one.offered_per_s - last.offered_per_s)
        last = one
    return last.offered_per_s if last else 0.0
