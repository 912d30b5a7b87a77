"""The admission rules that are compared: the same Router, told of other output lengths.

ours              the life table of `services.router.output_length`
oracle            ours, told each output's true length beforehand
limit             max_new_tokens in full, as LightLLM counts on nodes that only decode
moving average    1.1 x the average of what ended lately, or 1.1 x what has been produced: LightLLM's normal rule
aggressive        no growth at all: whatever fits now is let in
"""

from __future__ import annotations

from collections import deque

import numpy as np

from services.router.output_length import ALL, LengthConfig, OutputLengths, Sequences
from services.router.peak_memory import IntArray

RULES = ("ours", "oracle", "limit", "moving average", "aggressive")
_AVERAGED = 1000


def lengths_of(rule: str, config: LengthConfig) -> OutputLengths:
    """What a Router under this rule expects. Raises KeyError for an unknown rule."""
    makers = {
        "ours": OutputLengths,
        "oracle": OutputLengths,
        "limit": Limit,
        "moving average": MovingAverage,
        "aggressive": NoGrowth,
    }
    return makers[rule](config)


class Limit(OutputLengths):
    """Every output gets as long as it may."""

    def remaining(self, sequences: Sequences, level: float) -> IntArray:  # noqa: ARG002  no quantile here
        """[n] tokens to come."""
        left: IntArray = np.maximum(sequences.max_new - sequences.produced, 0)
        return left


class NoGrowth(OutputLengths):
    """Every output ends with its next token."""

    def remaining(self, sequences: Sequences, level: float) -> IntArray:  # noqa: ARG002  no quantile here
        """[n] tokens to come."""
        left: IntArray = np.minimum(sequences.max_new - sequences.produced, 1)
        return left


class MovingAverage(OutputLengths):
    """Every output gets as long as those that ended lately, and a tenth more."""

    def __init__(self, config: LengthConfig) -> None:
        super().__init__(config)
        self._recent: deque[int] = deque([config.prior_tokens], maxlen=_AVERAGED)
        self._sum = config.prior_tokens

    def observe(self, length: int, now: int, group: int = ALL, *, natural: bool) -> None:
        """One output ended with `length` tokens."""
        super().observe(length, now, group, natural=natural)
        if len(self._recent) == _AVERAGED:
            self._sum -= self._recent[0]
        self._recent.append(length)
        self._sum += length

    def remaining(self, sequences: Sequences, level: float) -> IntArray:  # noqa: ARG002  no quantile here
        """[n] tokens to come; at least 1 until the limit."""
        expected = int(1.1 * self._sum / len(self._recent))
        total = np.maximum((1.1 * sequences.produced).astype(np.int64), max(expected, 1))
        at_most = np.maximum(sequences.max_new - sequences.produced, 0)
        left: IntArray = np.minimum(np.maximum(total - sequences.produced, 1), at_most)
        return left
