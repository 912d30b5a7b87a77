"""How long waiting work will wait, from what the worker holds, how fast it computes, and who is ahead.

Two things must come free, and the later one counts.

- Compute: the prompts ahead, less the share that caches have held lately, at the measured rate.
- Memory: what is ahead and does not fit, at the rate at which work was let in lately while more of it waited. Work is
  measured by its own predicted peak on both sides, so that an error in lengths cancels out. But no longer than until
  the occupancy curve has room for itself and all ahead of it: lengths are predicted on the long side, so that this is a
  bound, and it binds where a rate says little: after idle, in a burst, while long outputs hold the pool. Until a rate
  is known it is all there is.

A fluid picture, good enough to refuse early and to compare workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from services.router.pace import Pace
from services.router.peak_memory import IntArray, Joiners, PeakCurve
from services.router.survival import FloatArray


@dataclass(slots=True)
class Rates:
    """Measured speeds of one worker, of late. 0: not known yet, which predicts no wait."""

    step_s: float = 0.0
    """Seconds of a step with decoding in it."""
    compute_tokens_per_s: float = 0.0
    """Prompt tokens, over the steps that had any."""
    missing_share: float = 1.0
    """Of the tokens of prompts that were let in, those that no cache held."""
    _steps: Pace = field(default_factory=Pace)
    _prompts: Pace = field(default_factory=Pace)
    _let_in_slots: float = 0.0
    _waited_s: float = 0.0
    _since_s: float | None = None
    """When the last plan was that left something waiting; None: nothing waits since."""

    @property
    def let_in_slots_per_s(self) -> float:
        """Peaks of what was let in, over the last seconds in which something waited; 0 while there are too few."""
        return self._let_in_slots / self._waited_s if self._waited_s >= _LEAST_S else 0.0

    def stepped(self, step_s: float, num_prefill_tokens: int, num_decode_rows: int) -> None:
        """One step's time and work."""
        if num_decode_rows:
            self._steps.stepped(step_s, 1)
            self.step_s = self._steps.unit_s
        if num_prefill_tokens:
            self._prompts.stepped(step_s, num_prefill_tokens)
            token_s = self._prompts.unit_s
            self.compute_tokens_per_s = 1 / token_s if token_s else 0.0

    def admitted(self, context_tokens: int, cached_tokens: int) -> None:
        """The engine took work to compute; averaged over some tens of thousands of tokens."""
        weight = min(context_tokens / _HIT_TOKENS, 0.5)
        self.missing_share += weight * (1.0 - cached_tokens / context_tokens - self.missing_share)

    @property
    def anything_waits(self) -> bool:
        """Whether the last plan left something waiting that has not gone since."""
        return self._since_s is not None

    def let_in(self, slots: int) -> None:
        """The engine took work of this peak that had to wait."""
        self._let_in_slots += slots

    def planned(self, now_s: float, *, more_waits: bool) -> None:
        """A plan was made, or the last that waited is gone: only time in which something waits tells of a rate.

        Slots and seconds are forgotten alike, and divided at last: the mean of noisy rates would predict too long.
        """
        if self._since_s is not None:
            span_s = now_s - self._since_s
            kept = math.exp(-span_s / _MEMORY_S)
            self._let_in_slots *= kept
            self._waited_s = self._waited_s * kept + span_s
        self._since_s = now_s if more_waits else None


_LEAST_S = 0.2
"""Less time in which something waited is no evidence of a rate."""
_MEMORY_S = 30.0
"""How long evidence counts. Pools let in by the handful: of long outputs, less would be the last handful's rate."""
_HIT_TOKENS = 50_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Who waits, in order. All arrays [k]."""

    joiners: Joiners
    compute_tokens: IntArray
    computing_tokens: int
    """Prompt tokens of work that is in and not computed yet."""


def predicted_waits_s(curve: PeakCurve, backlog: Backlog, capacity: int, rates: Rates) -> FloatArray:
    """[k + 1] seconds until each waiting entry is let in; the last is for one that would come now, behind all."""
    waiting = np.concatenate(([0], np.cumsum(backlog.compute_tokens)))
    ahead = waiting * rates.missing_share + backlog.computing_tokens
    compute_s = ahead / rates.compute_tokens_per_s if rates.compute_tokens_per_s else np.zeros(len(ahead))
    own_peak = backlog.joiners.own_peaks
    typical = int(own_peak.mean()) if len(own_peak) else 0
    need = np.cumsum(np.concatenate((own_peak, [typical])))
    waits_s: FloatArray = np.maximum(compute_s, _memory_s(curve, backlog.joiners, need, capacity, rates))
    return waits_s


def _memory_s(curve: PeakCurve, joiners: Joiners, need: IntArray, capacity: int, rates: Rates) -> FloatArray:
    """[k + 1] seconds until there is room for `need` slots more."""
    by_curve_s: FloatArray = _steps_until_free(curve, joiners, need, capacity) * rates.step_s
    if not rates.let_in_slots_per_s:
        return by_curve_s
    by_rate_s: FloatArray = np.maximum(need + curve.peak - capacity, 0) / rates.let_in_slots_per_s
    return np.minimum(by_rate_s, by_curve_s) if rates.step_s else by_rate_s  # without steps the curve tells no time


def _steps_until_free(curve: PeakCurve, joiners: Joiners, need: IntArray, capacity: int) -> FloatArray:
    """[k] steps until the curve stays low enough for `need` slots more; beyond the whole pool, in proportion.

    Where nothing grows it leaves when others take it, which no step count tells: 0. A pool of which nothing is left to
    requests counts as one of a single slot: the wait is long, and a number.
    """
    worst = curve.worst_after
    after = np.searchsorted(worst, capacity - need, side="right") - 1
    until = np.concatenate((curve.ends - curve.now, [0]))
    longest = max(int(until[0]), int(joiners.left.mean()) if len(joiners) else 0)
    return np.where(after >= 0, until[np.maximum(after, 0)], longest * need / max(capacity, 1))
