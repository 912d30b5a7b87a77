"""The state of running rows as arrays, so that a step over hundreds of rows is built without a loop over them.

A row belongs to one sequence, or to a prompt being computed (its first sequence takes it over). `length` counts tokens
whose KV is in the row's slots or is being written by a launched step; `remaining` counts decode steps that may still
be launched for it, and is 0 for rows that do not decode; `prompt` counts the tokens before a decoding row's outputs.
"""

import numpy as np

from services.engine.arrays import Ints
from services.engine.batch import TableWrite


class Rows:
    """Owned by the engine's loop. Entries of the slot table beyond a row's capacity name the padding slot."""

    def __init__(self, num_rows: int, width: int, padding_slot: int) -> None:
        self.table: Ints = np.full((num_rows, width), padding_slot, np.int32)
        self.length: Ints = np.zeros(num_rows, np.int32)
        self.capacity: Ints = np.zeros(num_rows, np.int32)
        self.remaining: Ints = np.zeros(num_rows, np.int32)
        self.prompt: Ints = np.zeros(num_rows, np.int32)
        self._padding_slot = padding_slot
        self._free = list(range(num_rows - 1, -1, -1))
        self._writes: list[TableWrite] = []

    @property
    def num_free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    @property
    def width(self) -> int:
        """Most tokens a row can hold."""
        return int(self.table.shape[1])

    def take(self) -> int:
        """A free row, empty; the caller has checked that there is one."""
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Make a row free and empty."""
        self.table[row, : self.capacity[row]] = self._padding_slot
        self._writes.append(TableWrite(row, 0, int(self.capacity[row])))
        self.length[row] = self.capacity[row] = self.remaining[row] = 0
        self._free.append(row)

    def write(self, row: int, start: int, slots: Ints) -> None:
        """Put the slots of positions from `start` on; they become the end of the row."""
        end = min(start + len(slots), self.width)
        self.table[row, start:end] = slots[: end - start]
        self.capacity[row] = end
        self._writes.append(TableWrite(row, start, end))

    def decoding(self) -> Ints:
        """Rows that decode in the next step, ascending."""
        return np.flatnonzero(self.remaining).astype(np.int32)

    def take_writes(self) -> list[TableWrite]:
        """Writes since the last call, in order."""
        writes, self._writes = self._writes, []
        return writes
