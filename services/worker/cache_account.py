"""What the engine's prefix cache holds, and what each master has been told of it.

    engine --CacheChanged--> CacheJournal --since(where this master stands)--> CacheReport --CacheChanges--> master

The journal keeps the blocks that are held and the last changes in order. A report takes up where it left off, whatever
was changed and changed back in between counts once; one that has fallen behind the journal's memory, that is new, or
whose master has lost something begins a new generation with all that is held.
"""

import itertools
from collections import deque

from services.common import ipc
from services.common.messages import CacheChanges

MAX_BLOCKS = 4096
"""Names in one message: 32 KiB."""
MAX_CHANGES = 65_536
"""Changes that are remembered. A master that is further behind is better off with the whole."""


class CacheJournal:
    """One per worker process; written by its engine's events, read by its masters' reports."""

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self.held: set[int] = set()
        self._changes: deque[tuple[int, bool]] = deque(maxlen=max_changes)
        self._generations = itertools.count(1)
        self.position = 0
        """Changes since the start."""

    def note(self, event: ipc.CacheChanged) -> None:
        """The cache has changed."""
        self.held.difference_update(event.evicted)
        self.held.update(event.stored)
        self._changes.extend((name, False) for name in event.evicted)
        self._changes.extend((name, True) for name in event.stored)
        self.position += len(event.stored) + len(event.evicted)

    def since(self, position: int) -> dict[int, bool] | None:
        """Block -> whether it is held, of those that changed since; None when that is too long ago to be known."""
        num_behind = self.position - position
        if num_behind > len(self._changes):
            return None
        return dict(itertools.islice(self._changes, len(self._changes) - num_behind, None))

    def next_generation(self) -> int:
        """A number for a new account."""
        return next(self._generations)


class CacheReport:
    """One per session with a master."""

    def __init__(self, journal: CacheJournal) -> None:
        self._journal = journal
        self._position: int | None = None
        """How far the master has been told; None: it knows nothing."""
        self._generation = 0
        self._number = 0

    def restart(self) -> None:
        """The master has lost something, or knows nothing."""
        self._position = None

    def messages(self) -> list[CacheChanges]:
        """What to tell the master now; empty when nothing has changed."""
        journal = self._journal
        changes = None if self._position is None else journal.since(self._position)
        self._position = journal.position
        if changes is None:
            self._generation, self._number = journal.next_generation(), 0
            return self._numbered(list(journal.held), [], at_least=1)
        stored = [name for name, is_held in changes.items() if is_held]
        return self._numbered(stored, [name for name, is_held in changes.items() if not is_held])

    def _numbered(self, stored: list[int], evicted: list[int], at_least: int = 0) -> list[CacheChanges]:
        count = max(-(-max(len(stored), len(evicted)) // MAX_BLOCKS), at_least)
        parts = [slice(part * MAX_BLOCKS, (part + 1) * MAX_BLOCKS) for part in range(count)]
        first, self._number = self._number, self._number + count
        return [
            CacheChanges(self._generation, first + number, stored[part], evicted[part])
            for number, part in enumerate(parts)
        ]
