"""How long outputs get: a life table with delayed entry and right-censoring.

The chance that an output that reached x - 1 tokens ends at x is estimated from one period of time: of all sequences
that passed length x in it, the share that ended there (Kaplan & Meier 1958; with delayed entry, Tsai, Jewell & Wang
1987). A sequence that still runs, was aborted, or was cut by max_new_tokens counts as passing every length it reached
and as ending nowhere: leaving such out would bias lengths short, since the long ones are those that have not ended.
One that was under way when the period began counts only for the lengths it passed since: leaving this out would bias
lengths long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from services.router.peak_memory import IntArray

FloatArray: TypeAlias = npt.NDArray[np.float64]

NEVER = np.iinfo(np.int64).max // 4
"""The length reported where the table does not reach so far: more than any request may produce."""


@dataclass(frozen=True)
class SurvivalCurve:
    """The share of outputs longer than each length.

    lengths: [m] where outputs ended, ascending. passing: [m + 1] how many sequences were seen to reach lengths[i], 0
    behind the last. survival: [m + 1] the share longer than lengths[i - 1]; survival[0] = 1.
    """

    lengths: IntArray
    passing: IntArray
    survival: FloatArray

    @classmethod
    def of(cls, length: IntArray, entry: IntArray, ended: npt.NDArray[np.bool_]) -> SurvivalCurve:
        """From sequences that were seen from `entry` (exclusive) to `length` tokens, and `ended` there or not. All
        [n]."""
        lengths, deaths = np.unique(length[ended], return_counts=True)
        reached = len(length) - np.searchsorted(np.sort(length), lengths, side="left")
        not_entered = len(entry) - np.searchsorted(np.sort(entry), lengths, side="left")
        passing = reached - not_entered
        survival = np.concatenate(([1.0], np.cumprod(1.0 - deaths / np.maximum(passing, 1))))
        return cls(lengths, np.concatenate((passing, [0])), survival)

    @cached_property
    def _falling(self) -> FloatArray:
        return -self.survival

    @cached_property
    def _ends(self) -> IntArray:
        """[m + 1] the length reached with the i-th step down; NEVER behind the last."""
        return np.concatenate((self.lengths, [NEVER]))

    def quantile(self, level: FloatArray, produced: IntArray) -> tuple[IntArray, IntArray]:
        """The length below which the share `level` of those outputs ends that exceed `produced`, and its evidence.

        Returns [n] lengths, NEVER past the table, and [n] how many sequences were seen to reach the next length at
        which one with `produced` tokens could end.
        """
        start = np.searchsorted(self.lengths, produced, side="right")
        # Rounding of the products must not push a quantile that falls on a length to the next one.
        target = (1.0 - level) * self.survival[start] * (1.0 + 1e-9)
        reached = np.maximum(np.searchsorted(self._falling, -target, side="left"), start + 1)
        return self._ends[np.minimum(reached - 1, len(self.lengths))], self.passing[start]
