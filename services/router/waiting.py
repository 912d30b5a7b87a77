"""The queue of a Router: first come, first served within a priority, by the age of the request.

A level of priority is worth a fixed amount of age, so that the order of two entries never changes while they wait and
the lowest level is not starved by a stream of the highest. Preempted sequences come before all.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from services.router.output_length import Sequences
from services.router.peak_memory import IntArray
from services.router.survival import FloatArray
from services.router.work import QueuedWork, RouterConfig, WorkKind


@dataclass(slots=True)
class Waiting:
    """One entry of the queue. The Router changes the last three."""

    work: QueuedWork
    rank: tuple[bool, float, int]
    """Order in the queue: preempted first, then age with priority, then as it came."""
    unit: float
    """Place among quantiles, for life (`output_length.place_of`)."""
    group: int
    bypassed: int = 0
    """How many younger were let in since it first did not fit."""
    blocked_since_s: float | None = None
    granted: bool = False
    """PREFILL: a decode worker has promised room."""


@dataclass(frozen=True, slots=True)
class QueueArrays:
    """The queue, in order, as arrays [k]."""

    held: IntArray
    growth: IntArray
    choices: IntArray
    compute_tokens: IntArray
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

    def get(self, key: Hashable) -> Waiting | None:
        """The entry of a key, if it waits."""
        return self._by_key.get(key)

    def rank_of(self, work: QueuedWork) -> tuple[bool, float, int]:
        """Where new work belongs."""
        age = work.arrival_s + work.priority * self._config.priority_step_s
        return (work.kind is not WorkKind.RESUMED, age, next(self._numbers))

    def push(self, entry: Waiting) -> None:
        """Put it where its rank says. Raises KeyError if its key waits already."""
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

    def num_resumed(self) -> int:
        """Preempted sequences that wait; they are at the front."""
        return sum(1 for _ in itertools.takewhile(lambda entry: entry.work.kind is WorkKind.RESUMED, self._entries))

    def arrays(self) -> QueueArrays:
        """The queue as arrays, kept until it changes."""
        if self._arrays is None:
            works = [entry.work for entry in self._entries]
            self._arrays = QueueArrays(
                held=_ints([self._config.held_slots(work) for work in works]),
                growth=_ints([work.num_choices if work.grows else 0 for work in works]),
                choices=_ints([work.num_choices for work in works]),
                compute_tokens=_ints([work.compute_tokens for work in works]),
                deadline_s=np.array([work.queue_deadline_s for work in works], dtype=np.float64),
                lengths=Sequences(
                    produced=_ints([work.produced_tokens for work in works]),
                    min_new=_ints([work.min_new_tokens for work in works]),
                    max_new=_ints([work.max_new_tokens if work.grows else 0 for work in works]),
                    unit=np.array([entry.unit for entry in self._entries], dtype=np.float64),
                    group=_ints([entry.group for entry in self._entries]),
                ),
            )
        return self._arrays


def _ints(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
