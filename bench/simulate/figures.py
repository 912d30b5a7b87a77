"""The figures of one run: goodput at a pair of bounds, percentiles, preemptions, refusals. Shared with the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as good."""

    ttft_s: float
    tpot_s: float
    """Mean time between its tokens."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Lists go by QUANTILES; times in seconds."""

    offered_per_s: float
    goodput_per_s: float
    """Requests a second within both bounds."""
    good_share: float
    """Of all that came."""
    ttft_s: list[float]
    tpot_s: list[float]
    itl_s: list[float]
    e2e_s: list[float]
    output_tokens_per_s: float
    num_requests: int
    refused_share: float
    preempted_share: float
    """Requests that were preempted at least once, of all."""
    preemptions: int
    cached_share: float
    """Prompt tokens found in a prefix cache, of those let in."""
    imbalance: float
    """Tokens computed by the busiest prefill worker over the mean."""


def quantiles(values: Sequence[float]) -> list[float]:
    """At QUANTILES; NaN where there is nothing."""
    if not len(values):
        return [float("nan")] * len(QUANTILES)
    return [float(value) for value in np.quantile(np.asarray(values), QUANTILES)]


def weighted_quantiles(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> list[float]:
    """The same of values that occur `weights` times each."""
    if not len(values):
        return quantiles([])
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(QUANTILES) * reached[-1])
    return [float(values[order][min(place, len(values) - 1)]) for place in places]
