"""Sequences that decode in one pool, as sums: a step costs O(1), however many there are.

A row gets slots by extents: its prompt's KV came without room to grow, so it takes an extent at its first step and each
time it has filled one. Counting rows by the step they began at, modulo the extent, tells how many take one now.

    grow (extents for the next step are taken) --> advance (the step is made) --> remove what ends --> grow ...
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from bench.simulate.story import Story


@dataclass(slots=True, eq=False)
class Row:
    """One sequence that decodes. Steps are the pool's."""

    key: tuple[int, int]
    story: Story
    context: int
    """Tokens when it began here."""
    produced: int
    """Outputs before it began here."""
    since: int

    @property
    def end(self) -> int:
        """The step it ends with."""
        return self.since + self.story.output_tokens - self.produced


class Rows:
    """Owned by a decode worker."""

    def __init__(self, extent_slots: int) -> None:
        self.step = 0
        self.context_tokens = 0
        self.slots = 0
        self._extent = extent_slots
        self._by_key: dict[tuple[int, int], Row] = {}
        self._by_end: defaultdict[int, dict[tuple[int, int], Row]] = defaultdict(dict)
        self._by_phase = [0] * extent_slots

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, row: Row) -> None:
        """It decodes from the next step on; its context occupies slots."""
        self._by_key[row.key] = row
        self._by_end[row.end][row.key] = row
        self._by_phase[row.since % self._extent] += 1
        self.context_tokens += row.context
        self.slots += row.context

    def remove(self, row: Row) -> None:
        """It frees what it has."""
        del self._by_key[row.key]
        ending = self._by_end[row.end]
        del ending[row.key]
        if not ending:
            del self._by_end[row.end]
        self._by_phase[row.since % self._extent] -= 1
        self.context_tokens -= row.context + self.step - row.since
        self.slots -= self.occupied(row)

    @property
    def slots_wanted(self) -> int:
        """For the next step."""
        return self._extent * self._by_phase[self.step % self._extent]

    def occupied(self, row: Row) -> int:
        """Slots of one row between two steps."""
        return row.context + -(-(self.step - row.since) // self._extent) * self._extent

    def grow(self) -> None:
        """Take what the next step wants; nothing is added or removed until that step is made."""
        self.slots += self.slots_wanted

    def youngest(self) -> Row:
        """Of the latest original arrival."""
        return max(self._by_key.values(), key=lambda row: (row.story.arrival.at_s, row.story.number))

    def advance(self) -> list[Row]:
        """One token each, in slots that `grow` took; returns those that end with it, which are still to be removed."""
        self.context_tokens += len(self._by_key)
        self.step += 1
        return list(self._by_end[self.step].values()) if self.step in self._by_end else []
