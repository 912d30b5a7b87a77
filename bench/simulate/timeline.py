"""Simulated time: what happens next, in order; the same order for events of one moment as they were set."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timeline:
    """One for a simulation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def clock(self) -> float:
        """For what takes a clock."""
        return self.now_s

    def at(self, when_s: float, act: Callable[[], None]) -> None:
        """Do it then, or now when that has passed."""
        heapq.heappush(self._events, (max(when_s, self.now_s), next(self._numbers), act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do it so much later."""
        self.at(self.now_s + delay_s, act)

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
