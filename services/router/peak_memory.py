"""How many slots a set of requests will occupy at most, if each grows one slot a step and frees all at its end.

Let `held_i` be the slots request i occupies now, `left_i` the steps until it ends. At the step where request i ends,
all requests that end no earlier are still there and have grown by `left_i`. Occupancy only falls where a request
ends, so with requests sorted by `left` descending the peak is

    max_i( sum_{j <= i} held_j + i * left_i )

(Past-Future scheduler, ASPLOS'25, arXiv 2507.10150). An entry may also grow by 0 (a prefix shared by several
requests, which stays until the last of them ends) or by n (one prompt with n choices that have not split yet): i then
counts growth, not entries.

In absolute steps, entry j occupies `base_j + growth_j * t` at step t, with `base_j = held_j - growth_j * now`.
Neither base nor end changes as steps go by, which is why a step costs nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
IntSequence: TypeAlias = Sequence[int] | IntArray

_A_FEW = 4
"""Tried first when asking how many fit: where a pool is nearly full it is fewer than this."""


def peak_tokens(held: IntSequence, left: IntSequence, growth: IntSequence | None = None) -> int:
    """The most slots that requests holding `held` will occupy at once, now or later.

    held: [n] slots occupied now, >= 0. left: [n] steps until each ends and frees all, >= 0. growth: [n] slots gained
    a step, 1 each where left out. Raises ValueError when lengths differ or a value is negative.
    """
    return PeakCurve.of(Joiners.of(held, left, growth), now=0).peak


@dataclass(frozen=True)
class Joiners:
    """Requests that would start now, in the order in which they would be let in. All arrays [n], int64."""

    held: IntArray
    left: IntArray
    growth: IntArray

    @classmethod
    def of(cls, held: IntSequence, left: IntSequence, growth: IntSequence | None = None) -> Joiners:
        """Checks what comes from outside; see `peak_tokens` for the meaning."""
        held_array, left_array = np.asarray(held, dtype=np.int64), np.asarray(left, dtype=np.int64)
        growth_array = np.ones_like(held_array) if growth is None else np.asarray(growth, dtype=np.int64)
        for name, array in (("held", held_array), ("left", left_array), ("growth", growth_array)):
            if array.shape != (len(held_array),):
                raise ValueError(f"{name}: expected shape ({len(held_array)},), got {array.shape}")
            if array.size and array.min() < 0:
                raise ValueError(f"{name}: expected no negative value, got {array.min()}")
        return cls(held_array, left_array, growth_array)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def own_peaks(self) -> IntArray:
        """[n] slots that each will have occupied by itself when it ends."""
        return self.held + self.growth * self.left

    def __getitem__(self, part: slice | IntArray) -> Joiners:
        return Joiners(self.held[part], self.left[part], self.growth[part])


@dataclass(frozen=True)
class PeakCurve:
    """Occupancy at every step where something ends, latest end first. Immutable; valid until an entry changes.

    ends: [n] absolute steps, descending, none before `now`. base, growth: [n] running sums over the entries up to each.
    """

    now: int
    ends: IntArray
    base: IntArray
    growth: IntArray

    @classmethod
    def of(cls, entries: Joiners, now: int) -> PeakCurve:
        """The curve of entries given relative to `now`."""
        order = np.argsort(-entries.left, kind="stable")
        entries = entries[order]
        return cls.from_sorted(now, entries.left + now, entries.held - entries.growth * now, entries.growth)

    @classmethod
    def from_sorted(cls, now: int, ends: IntArray, base: IntArray, growth: IntArray) -> PeakCurve:
        """From single entries in absolute form, ends descending. Ends that have passed count as ending now."""
        return cls(now, np.maximum(ends, now), np.cumsum(base), np.cumsum(growth))

    @cached_property
    def occupancy(self) -> IntArray:
        """[n] slots occupied at the step ends[i]. Where several end together only the last of them counts all."""
        return self.base + self.growth * self.ends

    @cached_property
    def peak(self) -> int:
        """Slots occupied at the worst step, 0 when there is nothing."""
        return int(self.occupancy.max()) if len(self.ends) else 0

    @cached_property
    def _ends_rising(self) -> IntArray:
        return -self.ends

    @cached_property
    def worst_after(self) -> IntArray:
        """[n + 1] ascending: the most slots occupied at any step once entries i.. have ended; 0 once all have."""
        return np.maximum.accumulate(np.concatenate(([0], self.occupancy)))

    @cached_property
    def _grown(self) -> IntArray:
        """[n] the slots occupied at ends[i] with one more entry that grows by 1, but for its base."""
        return self.occupancy + self.ends

    @cached_property
    def _worst_grown_to_bottom(self) -> IntArray:
        """[n + 1] the largest of `_grown` from entry i on; a number below all for none."""
        grown = np.concatenate((self._grown, [np.iinfo(np.int64).min // 2]))
        return np.maximum.accumulate(grown[::-1])[::-1]

    def peak_with_one(self, held: int, left: int) -> int:
        """The peak if one more request (growth 1) started now. Two reductions over the n."""
        end = self.now + left
        later = int(np.searchsorted(self._ends_rising, -end, side="left"))
        not_earlier = int(np.searchsorted(self._ends_rising, -end, side="right"))
        base, growth = (int(self.base[not_earlier - 1]), int(self.growth[not_earlier - 1])) if not_earlier else (0, 0)
        at_its_end = base + growth * end + held + left
        peak = max(int(self.occupancy[:later].max(initial=0)), at_its_end)
        if later == len(self.ends):
            return peak
        return max(peak, int(self._grown[later:].max()) + held - self.now)

    def peak_with(self, joiners: Joiners) -> int:
        """The peak if all of these started now. O(n + k log n), no sorting of the n."""
        if not len(joiners):
            return self.peak
        joiners = joiners[np.argsort(-joiners.left, kind="stable")]
        ends, growth = joiners.left + self.now, np.cumsum(joiners.growth)
        base = np.cumsum(joiners.held - joiners.growth * self.now)
        return max(self._peak_at_old_ends(ends, base, growth), self._peak_at_new_ends(ends, base, growth))

    def _peak_at_old_ends(self, ends: IntArray, base: IntArray, growth: IntArray) -> int:
        """Between two ends of joiners the same joiners are there: spread their growth out, add their base at last."""
        starts = np.concatenate(([0], np.searchsorted(self._ends_rising, -ends, side="left")))
        lengths = np.diff(starts, append=len(self.ends))
        some = lengths > 0
        if not some.any():
            return 0
        joined = np.repeat(np.concatenate(([0], growth)), lengths)
        worst = np.maximum.reduceat(self.occupancy + joined * self.ends, starts[some])
        return int((worst + np.concatenate(([0], base))[some]).max())

    def _peak_at_new_ends(self, ends: IntArray, base: IntArray, growth: IntArray) -> int:
        behind = np.searchsorted(self._ends_rising, -ends, side="right")
        old_base, old_growth = np.concatenate(([0], self.base)), np.concatenate(([0], self.growth))
        return int((base + old_base[behind] + (growth + old_growth[behind]) * ends).max())

    def num_that_fit(self, joiners: Joiners, capacity: int) -> int:
        """How many of these, taken in order, can start now with the peak below `capacity`.

        One more request never lowers the peak, so the answer is found by bisection: log2(k) vectorised evaluations.
        A few or all are the usual answers, so these are tried first.
        """
        if not len(joiners) or not self._first_fits(joiners, capacity):
            return 0
        fits, too_many = 1, len(joiners) + 1
        guesses = iter((_A_FEW, len(joiners)))
        while too_many - fits > 1:
            guess = next(guesses, 0)
            middle = guess if fits < guess < too_many else (fits + too_many) // 2
            if self.peak_with(joiners[:middle]) < capacity:
                fits = middle
            else:
                too_many = middle
        return fits

    def might_fit(self, joiners: Joiners, capacity: int) -> npt.NDArray[np.bool_]:
        """[k] False: it cannot start now, even alone. True: it can, if it grows by at most 1. O(n + k log n)."""
        end = self.now + joiners.left
        later = np.searchsorted(self._ends_rising, -end, side="left")
        not_earlier = np.searchsorted(self._ends_rising, -end, side="right")
        old_base, old_growth = np.concatenate(([0], self.base)), np.concatenate(([0], self.growth))
        at_its_end = (
            old_base[not_earlier] + old_growth[not_earlier] * end + joiners.held + joiners.left * joiners.growth
        )
        before_its_end = self._worst_grown_to_bottom[later] + joiners.held - self.now
        peak = np.maximum(self.worst_after[later], at_its_end)
        fits: npt.NDArray[np.bool_] = np.where(joiners.growth > 0, np.maximum(peak, before_its_end), peak) < capacity
        return fits

    def _first_fits(self, joiners: Joiners, capacity: int) -> bool:
        if joiners.growth[0] == 1:
            return self.peak_with_one(int(joiners.held[0]), int(joiners.left[0])) < capacity
        return self.peak_with(joiners[:1]) < capacity

    def joined_by(self, joiners: Joiners) -> PeakCurve:
        """The curve once these have started. O(n + k)."""
        ends = np.concatenate((self.ends, joiners.left + self.now))
        base = np.concatenate((np.diff(self.base, prepend=0), joiners.held - joiners.growth * self.now))
        growth = np.concatenate((np.diff(self.growth, prepend=0), joiners.growth))
        order = np.argsort(-ends, kind="stable")
        return PeakCurve.from_sorted(self.now, ends[order], base[order], growth[order])

    def at(self, now: int) -> PeakCurve:
        """The same entries seen from a later step. O(1) as long as none has outlived its end."""
        if len(self.ends) and self.ends[-1] < now:
            return PeakCurve(now, np.maximum(self.ends, now), self.base, self.growth)
        curve = PeakCurve(now, self.ends, self.base, self.growth)
        curve.__dict__.update({name: value for name, value in self.__dict__.items() if name != "now"})
        return curve
