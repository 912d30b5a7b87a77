"""Which prompt prefixes each worker's cache holds, from the workers' own events. Pure.

A prefix is a chain of block names; a block's name stands for all tokens up to its end, so two prompts share a name
exactly where they are equal up to there. A worker holds a prefix as far as it holds every block of it in a row: one
missing in between ends the match, as it does in the worker's radix tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.common.messages import WorkerRef


class PrefixIndex:
    """One for a master. O(blocks of the prompt x workers that match) to ask, O(blocks) to tell."""

    def __init__(self) -> None:
        self._holders: dict[int, set[WorkerRef]] = {}
        self._blocks: dict[WorkerRef, set[int]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def stored(self, worker: WorkerRef, blocks: Iterable[int]) -> None:
        """The worker holds these from now on. Repeating it changes nothing."""
        held = self._blocks.setdefault(worker, set())
        for block in blocks:
            held.add(block)
            self._holders.setdefault(block, set()).add(worker)

    def evicted(self, worker: WorkerRef, blocks: Iterable[int]) -> None:
        """The worker holds these no more. Unknown ones are ignored."""
        held = self._blocks.get(worker, set())
        for block in blocks:
            if block in held:
                held.discard(block)
                self._drop(worker, block)

    def forget(self, worker: WorkerRef) -> None:
        """The worker is gone, or begins its account anew."""
        for block in self._blocks.pop(worker, set()):
            self._drop(worker, block)

    def match(self, blocks: Sequence[int]) -> dict[WorkerRef, int]:
        """Worker -> how many leading blocks it holds; workers that hold none are left out."""
        matched: dict[WorkerRef, int] = {}
        still: set[WorkerRef] | None = None
        for number, block in enumerate(blocks):
            holders = self._holders.get(block, set())
            held = set(holders) if still is None else still & holders
            for worker in (still or set()) - held:
                matched[worker] = number
            still = held
            if not still:
                break
        matched.update(dict.fromkeys(still or (), len(blocks)))
        return matched

    def _drop(self, worker: WorkerRef, block: int) -> None:
        holders = self._holders[block]
        holders.discard(worker)
        if not holders:
            del self._holders[block]
