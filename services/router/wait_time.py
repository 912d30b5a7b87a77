"""How long waiting work will wait, from what the worker holds, how fast it computes, and who is ahead.

Two things must come free, and the later one counts: compute (the prompts ahead, at the measured rate) and memory.
Memory comes free where the occupancy curve falls: entry k starts once the pool has room for itself and all ahead of
it at their own peaks. What goes beyond the pool as a whole waits in proportion. A fluid picture, good enough to
refuse early and to compare workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.router.peak_memory import IntArray, Joiners, PeakCurve
from services.router.survival import FloatArray


@dataclass(slots=True)
class Rates:
    """Measured speeds of one worker, as moving averages. 0: not known yet, which predicts no wait."""

    step_s: float = 0.0
    """Seconds of a step with decoding in it."""
    compute_tokens_per_s: float = 0.0
    """Prompt tokens, over the steps that had any."""
    freed_slots_per_s: float = 0.0
    """Slots given back, over the last seconds of being busy."""
    _freed_slots: int = 0
    _freed_since_s: float | None = None

    def stepped(self, step_s: float, num_prefill_tokens: int, num_decode_rows: int) -> None:
        """One step's time and work."""
        if num_decode_rows:
            self.step_s = _average(self.step_s, step_s, weight=0.1)
        if num_prefill_tokens and step_s > 0:
            self.compute_tokens_per_s = _average(self.compute_tokens_per_s, num_prefill_tokens / step_s, weight=0.1)

    def freed(self, slots: int, now_s: float) -> None:
        """Slots came back; averaged over spans of at least half a second."""
        if self._freed_since_s is None:
            self._freed_since_s = now_s
        self._freed_slots += slots
        span_s = now_s - self._freed_since_s
        if span_s >= 0.5:
            self.freed_slots_per_s = _average(self.freed_slots_per_s, self._freed_slots / span_s, weight=0.3)
            self._freed_slots, self._freed_since_s = 0, now_s


def _average(old: float, new: float, weight: float) -> float:
    return new if old == 0 else old + weight * (new - old)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Who waits, in order. All arrays [k]."""

    joiners: Joiners
    compute_tokens: IntArray
    computing_tokens: int
    """Prompt tokens of work that is in and not computed yet."""


def predicted_waits_s(curve: PeakCurve, backlog: Backlog, capacity: int, rates: Rates) -> FloatArray:
    """[k + 1] seconds until each waiting entry is let in; the last is for one that would come now, behind all."""
    ahead = np.concatenate(([0], np.cumsum(backlog.compute_tokens))) + backlog.computing_tokens
    compute_s = ahead / rates.compute_tokens_per_s if rates.compute_tokens_per_s else np.zeros(len(ahead))
    own_peak = backlog.joiners.held + backlog.joiners.growth * backlog.joiners.left
    typical = int(own_peak.mean()) if len(own_peak) else 0
    need = np.cumsum(np.concatenate((own_peak, [typical])))
    if curve.growth_now:
        memory_s = _steps_until_free(curve, backlog.joiners, need, capacity) * rates.step_s
    else:
        # Nothing grows here: what is held leaves when others take it, so only the measured rate tells.
        lacking = np.maximum(need + curve.peak - capacity, 0)
        memory_s = lacking / rates.freed_slots_per_s if rates.freed_slots_per_s else np.zeros(len(need))
    return np.maximum(compute_s, memory_s)


def _steps_until_free(curve: PeakCurve, joiners: Joiners, need: IntArray, capacity: int) -> FloatArray:
    """[k] steps until the curve stays low enough for `need` slots more; beyond the whole pool, in proportion."""
    worst = curve.worst_after
    after = np.searchsorted(worst, capacity - need, side="right") - 1
    until = np.concatenate((curve.ends - curve.now, [0]))
    longest = max(int(until[0]), int(joiners.left.mean()) if len(joiners) else 0)
    return np.where(after >= 0, until[np.maximum(after, 0)], longest * need / capacity)
