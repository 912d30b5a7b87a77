"""Loads: Poisson arrivals of one shape, or a trace."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path

from bench.simulate.trace import Arrival, read_trace, scaled


def poisson(prompt_tokens: int, output_tokens: int, rate: float, seconds: float, seed: int = 0) -> list[Arrival]:
    """Requests of one shape with exponential gaps, for about `seconds`; the same pattern at every rate."""
    draws = random.Random(seed)
    gaps = (draws.expovariate(1.0) / rate for _ in range(max(round(rate * seconds), 2)))
    times = list(accumulate(gaps))
    return [Arrival(at_s - times[0], prompt_tokens, output_tokens) for at_s in times]


def of_trace(path: Path, max_context_tokens: int, rate: float, seconds: float) -> list[Arrival]:
    """The trace's first requests at another mean rate, for about `seconds`, without those beyond the context.

    Raises ValueError where the trace cannot be read.
    """
    wanted = max(round(rate * seconds), 2)
    fitting = [
        one for one in read_trace(path, 4 * wanted) if one.prompt_tokens + one.output_tokens <= max_context_tokens
    ]
    return scaled(fitting[:wanted], rate)
