"""Points in time at which something is due, in a heap; the clock is the caller's."""

import heapq
import itertools
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Timers(Generic[T]):
    """What is due when. Nothing is removed one by one: whoever is woken checks whether it still matters."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._order = itertools.count()

    def add(self, due_s: float, what: T) -> None:
        """Remember."""
        heapq.heappush(self._heap, (due_s, next(self._order), what))

    def __len__(self) -> int:
        return len(self._heap)

    def keep(self, matters: Callable[[T], bool]) -> None:
        """Forget all that does not matter any more. O(n): for when most of it does not."""
        self._heap = [entry for entry in self._heap if matters(entry[2])]
        heapq.heapify(self._heap)

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
