"""A prefix cache of blocks, least lately used first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BlockCache:
    """Holds at most `capacity` blocks. A block is found only behind those before it, as in a radix tree."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def match(self, blocks: Iterable[int]) -> int:
        """How many leading blocks are held. Changes nothing."""
        count = 0
        for block in blocks:
            if block not in self._blocks:
                break
            count += 1
        return count

    def insert(self, blocks: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """A prompt was computed; returns the blocks stored and the blocks evicted.

        Its first blocks count as used last, so that a prefix goes after what builds on it.
        """
        stored = [block for block in blocks if block not in self._blocks]
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        evicted = []
        while len(self._blocks) > self.capacity:
            evicted.append(self._blocks.popitem(last=False)[0])
        return stored, evicted
