"""The queue of a Router: first come, first served within a priority, by the age of the request.

A level of priority is worth a fixed amount of age, so that the order of two entries never changes while they wait and
the lowest level is not starved by a stream of the highest. Preempted sequences come before all, and then prompts that
a decode worker has promised room: others wait for that room.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.router.output_length import Sequences
from services.router.peak_memory import IntArray
from services.router.survival import FloatArray
from services.router.work import QueuedWork, RouterConfig, WorkKind

_FIRST, _GRANTED, _LAST = range(3)


@dataclass(slots=True)
class Waiting:
    """One entry of the queue. The Router changes `rank` and the last four."""

    work: QueuedWork
    rank: tuple[int, float, int]
    """Order in the queue: preempted first, then granted, then age with priority, then as it came."""
    unit: float
    """Place among quantiles, for life (`output_length.place_of`)."""
    group: int
    facts: tuple[float, ...]
    """What never changes of it, as a row of the queue's arrays."""
    bypassed: int = 0
    """How many younger were let in since it first did not fit."""
    blocked_since_s: float | None = None
    asked: bool = False
    """PREFILL: a decode worker was asked for room; its own room is kept here (`scheduler`)."""
    granted: bool = False
    """PREFILL: a decode worker has promised room."""


@dataclass(frozen=True, slots=True)
class QueueArrays:
    """The queue, in order, as arrays [k]."""

    held: IntArray
    growth: IntArray
    choices: IntArray
    compute_tokens: IntArray
    ungranted: IntArray
    """Slots it would hold without a decode worker's grant."""
    asked: NDArray[np.bool_]
    deadline_s: FloatArray
    lengths: Sequences
    """`max_new` is 0 for work that does not grow here."""


class WaitingQueue:
    """Owned by one Router."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._entries: list[Waiting] = []
        self._by_key: dict[Hashable, Waiting] = {}
        self._numbers = itertools.count()
        self._arrays: QueueArrays | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries)

    def __getitem__(self, index: int) -> Waiting:
        return self._entries[index]

    def push(self, work: QueuedWork, unit: float, group: int) -> None:
        """Queue new work at its place. Raises KeyError if its key waits already."""
        age = work.arrival_s + work.priority * self._config.priority_step_s
        rank = (_FIRST if work.kind is WorkKind.RESUMED else _LAST, age, next(self._numbers))
        self.push_back(Waiting(work, rank, unit, group, _facts(work, unit, group, self._config)))

    def push_back(self, entry: Waiting) -> None:
        """Queue an entry that was taken out, at its old place. Raises KeyError if its key waits already."""
        if entry.work.key in self._by_key:
            raise KeyError(f"{entry.work.key!r} waits already")
        bisect.insort(self._entries, entry, key=lambda other: other.rank)
        self._by_key[entry.work.key] = entry
        self._arrays = None

    def pop(self, key: Hashable) -> Waiting | None:
        """Take an entry out, if it waits."""
        entry = self._by_key.pop(key, None)
        if entry is not None:
            del self._entries[bisect.bisect_left(self._entries, entry.rank, key=lambda other: other.rank)]
            self._arrays = None
        return entry

    def take(self, indices: list[int]) -> list[Waiting]:
        """Take the entries of these places out."""
        taken = [self._entries[index] for index in indices]
        for entry in taken:
            del self._by_key[entry.work.key]
        self._entries = [entry for entry in self._entries if entry.work.key in self._by_key]
        self._arrays = None
        return taken

    def grant(self, key: Hashable) -> None:
        """A decode worker has promised room for this one, if it waits."""
        entry = self.pop(key)
        if entry is not None:
            entry.granted, entry.rank = True, (_GRANTED, *entry.rank[1:])
            self.push_back(entry)

    def ask(self, index: int) -> bool:
        """A decode worker is to be asked for room for this one; whether it was not before."""
        entry = self._entries[index]
        is_new, entry.asked = not entry.asked, True
        if is_new:
            self._arrays = None
        return is_new

    def num_granted(self) -> int:
        """Those that a decode worker has promised room; where there are any, they are at the front."""
        return sum(1 for _ in itertools.takewhile(lambda entry: entry.granted, self._entries))

    def num_resumed(self) -> int:
        """Preempted sequences that wait; they are at the front."""
        return sum(1 for _ in itertools.takewhile(lambda entry: entry.work.kind is WorkKind.RESUMED, self._entries))

    def arrays(self) -> QueueArrays:
        """The queue as arrays, kept until it changes."""
        if self._arrays is None:
            rows = np.fromiter((entry.facts for entry in self._entries), dtype=_FACTS, count=len(self._entries))
            granted = np.array([entry.granted for entry in self._entries], dtype=np.bool_)
            self._arrays = QueueArrays(
                held=rows["held"].copy(),
                growth=rows["growth"].copy(),
                choices=rows["choices"].copy(),
                compute_tokens=rows["compute_tokens"].copy(),
                ungranted=np.where(rows["prefill"] & ~granted, rows["held"], 0),
                asked=np.array([entry.asked for entry in self._entries], dtype=np.bool_),
                deadline_s=rows["deadline_s"].copy(),
                lengths=Sequences(
                    rows["produced"], rows["min_new"], rows["max_new"], rows["unit"].copy(), rows["group"].copy()
                ),
            )
        return self._arrays


_FACTS = np.dtype(
    [
        ("held", np.int64),
        ("growth", np.int64),
        ("choices", np.int64),
        ("compute_tokens", np.int64),
        ("prefill", np.bool_),
        ("deadline_s", np.float64),
        ("produced", np.int64),
        ("min_new", np.int64),
        ("max_new", np.int64),
        ("unit", np.float64),
        ("group", np.int64),
    ]
)


def _facts(work: QueuedWork, unit: float, group: int, config: RouterConfig) -> tuple[float, ...]:
    """What never changes of an entry, in the order of `_FACTS`."""
    return (
        config.held_slots(work),
        work.num_choices if work.grows else 0,
        work.num_choices,
        work.compute_tokens,
        work.kind is WorkKind.PREFILL,
        work.queue_deadline_s,
        work.produced_tokens,
        work.min_new_tokens,
        work.max_new_tokens if work.grows else 0,
        unit,
        group,
    )
