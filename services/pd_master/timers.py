"""Points in time at which something is due, in a heap; the clock is the caller's."""

import heapq
import itertools
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """What is due when. Nothing is removed early: whoever is woken checks whether it still matters."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._order = itertools.count()

    def add(self, due_s: float, what: T) -> None:
        """Remember."""
        heapq.heappush(self._heap, (due_s, next(self._order), what))

    @property
    def next_s(self) -> float | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: float) -> list[T]:
        """Take out all that is due, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
