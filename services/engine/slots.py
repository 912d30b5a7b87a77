"""Which slots of the KV pool are free: an allocator of runs, contiguous where it can.

    free runs      [2, 5) [9, 40)            each known by its start, by its end and by (length, start)
    allocate(n)    the smallest run that holds n; when none does, whole runs from the largest down
    extend(s, n)   the run that starts at s, if it is free: a growing sequence stays contiguous
    free(slots)    noted; all that was freed since becomes runs, merged with free neighbours, before the next is taken

Invariant: free runs are disjoint and no two touch. All operations are O(log runs) a run, apart from list insertion.
Sequences that grew side by side have their slots in turn and often end together: together they are few runs.
"""

from bisect import bisect_left, insort

import numpy as np

from services.engine.arrays import Ints


class SlotAllocator:
    """Owned by the KV cache. Slots are numbered from 0; the caller keeps what it got and gives back exactly that."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._freed: list[Ints] = []  # no runs yet
        self._by_size: list[tuple[int, int]] = []  # (length, start), sorted
        self._end_of: dict[int, int] = {}  # start -> end
        self._start_of: dict[int, int] = {}  # end -> start
        if num_slots:
            self._add(0, num_slots)

    def allocate(self, n: int) -> Ints | None:
        """Return n slots in ascending runs, or None when fewer are free; [n], int32."""
        if n > self.num_free:
            return None
        self.settle()
        parts: list[tuple[int, int]] = []
        while n:
            i = min(bisect_left(self._by_size, (n, 0)), len(self._by_size) - 1)
            length, start = self._by_size[i]
            taken = min(length, n)
            self._take(start, taken)
            parts.append((start, taken))
            n -= taken
        return _slots(sorted(parts))

    def extend(self, start: int, n: int) -> Ints:
        """Return up to n slots from `start` on, as far as they are free: [<= n], int32."""
        self.settle()
        end = self._end_of.get(start)
        taken = 0 if end is None else min(n, end - start)
        if taken:
            self._take(start, taken)
        return np.arange(start, start + taken, dtype=np.int32)

    def take_run(self, start: int, n: int) -> bool:
        """Take exactly the n slots from `start` on, if they are all free."""
        self.settle()
        if self._end_of.get(start, start) < start + n:
            return False
        self._take(start, n)
        return True

    def free(self, slots: Ints) -> None:
        """Take back allocated slots in any order; the array is not to change any more."""
        if len(slots):
            self._freed.append(slots)
            self.num_free += len(slots)

    def settle(self) -> None:
        """Make runs of what was freed."""
        if self._freed:
            freed, self._freed = self._freed, []
            for start, end in runs(np.concatenate(freed)):
                self._free_run(start, end)

    def free_slots(self) -> Ints:
        """List every free slot, ascending; for integrity checks."""
        self.settle()
        return _slots(sorted((start, end - start) for start, end in self._end_of.items()))

    def _take(self, start: int, n: int) -> None:
        end = self._end_of[start]
        self._forget(start, end)
        if start + n < end:
            self._add(start + n, end)
        self.num_free -= n

    def _free_run(self, start: int, end: int) -> None:
        before = self._start_of.get(start)
        if before is not None:
            self._forget(before, start)
            start = before
        after = self._end_of.get(end)
        if after is not None:
            self._forget(end, after)
            end = after
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        insort(self._by_size, (end - start, start))

    def _forget(self, start: int, end: int) -> None:
        del self._end_of[start]
        del self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]


def runs(slots: Ints) -> list[tuple[int, int]]:
    """Split slots into maximal runs [start, end), ascending."""
    if len(slots) == 0:
        return []
    ordered = np.sort(slots)
    after = ordered + 1
    breaks = np.flatnonzero(ordered[1:] != after[:-1])
    starts = [int(ordered[0]), *ordered[breaks + 1].tolist()]
    return list(zip(starts, [*after[breaks].tolist(), int(after[-1])], strict=True))


def _slots(parts: list[tuple[int, int]]) -> Ints:
    if not parts:
        return np.empty(0, np.int32)
    if len(parts) == 1:
        ((start, n),) = parts
        return np.arange(start, start + n, dtype=np.int32)
    return np.concatenate([np.arange(start, start + n, dtype=np.int32) for start, n in parts])
