"""Backfilling, as schedulers of batch jobs do it (EASY: Lifka, 1995), to compare; the services do not use it.

The first request that does not fit, and may be passed no more, gets a reservation: the earliest step at which it fits
beside what is predicted to be left then. A younger one may pass it still when it fits now and is predicted to end by
that step. The step is set once, so that predictions that turn out too short do not put it off for ever.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from services.router.peak_memory import IntArray, Joiners, PeakCurve
from services.router.scheduler import Plan, PoolView, may_be_bypassed, plan
from services.router.waiting import WaitingQueue
from services.router.work import RouterConfig


class Backfill:
    """A planner; belongs to one Router."""

    def __init__(self) -> None:
        self._starts: dict[Hashable, int] = {}
        """The step that each was promised to start at."""

    def __call__(
        self, queue: WaitingQueue, joiners: Joiners, pool: PoolView, config: RouterConfig, now_s: float
    ) -> Plan:
        """The usual plan, and what fits in before the one that it stops at."""
        decided = plan(queue, joiners, pool, config, now_s)
        blocked = [place for place in decided.bypassed if not may_be_bypassed(queue[place], config, now_s)]
        if not blocked:
            return decided
        admitted = np.array(decided.admit, dtype=np.int64)
        curve = pool.curve.joined_by(joiners[admitted])
        start = self._start(queue[blocked[0]].work.key, int(joiners.own_peaks[blocked[0]]), curve, pool.capacity_slots)
        behind = np.setdiff1d(np.arange(blocked[0] + 1, len(queue)), admitted)
        short: IntArray = behind[curve.now + joiners.left[behind] <= start]
        room = config.max_running - pool.num_running - len(admitted)
        count = min(curve.num_that_fit(joiners[short], pool.capacity_slots), max(room, 0))
        return Plan(sorted([*decided.admit, *short[:count].tolist()]), decided.reserve_first, decided.bypassed)

    def _start(self, key: Hashable, peak: int, curve: PeakCurve, capacity: int) -> int:
        if key not in self._starts:
            fits = np.flatnonzero(curve.worst_after + peak < capacity)
            self._starts[key] = int(np.append(curve.ends, curve.now)[fits[-1]]) if len(fits) else curve.now
        return self._starts[key]
