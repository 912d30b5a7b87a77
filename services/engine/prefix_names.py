"""Which blocks of prompt the prefix tree holds, by name: what the control process is told of.

A block is held while the whole way from the root to its end is in the tree. It belongs to the node that it ends in, as
exactly one does; a name goes with its node.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from services.common.prefix_blocks import BLOCK_TOKENS, ROOT, packed_names
from services.engine.arrays import Ints


class NamedNode(Protocol):
    """A node of the tree, as far as names go."""

    tokens: Ints
    names: list[int]


class BlockNames:
    """Owned by the prefix cache: what was stored and evicted since it was last asked."""

    def __init__(self) -> None:
        self._changes: dict[int, bool] = {}
        """Name -> whether it is held now; the last word counts."""

    def stored(self, tokens: Ints, above: Sequence[NamedNode], start: int) -> list[int]:
        """Name the blocks that end in a new leaf: `tokens` from the root on, the first `start` of them in `above`."""
        first = start // BLOCK_TOKENS
        before = next((node.names[-1] for node in reversed(above) if node.names), ROOT)
        names = packed_names(_packed(tokens[first * BLOCK_TOKENS :]), before)
        self._changes.update(dict.fromkeys(names, True))
        return names

    def evicted(self, names: list[int]) -> None:
        """These blocks are gone."""
        self._changes.update(dict.fromkeys(names, False))

    def take(self) -> tuple[list[int], list[int]]:
        """Names stored and evicted since the last call."""
        changes, self._changes = self._changes, {}
        stored = [name for name, held in changes.items() if held]
        return stored, [name for name, held in changes.items() if not held]


def names_of(path: Sequence[NamedNode]) -> list[int]:
    """All names on a path from below the root, computed anew; for integrity checks."""
    return packed_names(_packed(np.concatenate([node.tokens for node in path])))


def _packed(tokens: Ints) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()
