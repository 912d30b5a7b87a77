"""The state of running rows as arrays, so that a step over hundreds of rows is built without a loop over them.

A row belongs to one sequence, or to a prompt being computed (its first sequence takes it over). `length` counts tokens
whose KV is in the row's slots or is being written by a launched step; `remaining` counts decode steps that may still
be launched for it, and is 0 for rows that do not decode; `prompt` counts the tokens before a decoding row's outputs;
`job_ids` and `choices` name the sequence that decodes in it.
"""

import numpy as np
from numpy.typing import NDArray

from services.engine.arrays import Indexes, Ints

NOBODY = -1
"""In `Rows.job_ids`."""
NO_WRITES: Ints = np.empty((0, 3), np.int32)


class Rows:
    """Owned by the engine's loop. Entries of the slot table beyond a row's capacity name the padding slot."""

    def __init__(self, num_rows: int, width: int, padding_slot: int) -> None:
        self.table: Ints = np.full((num_rows, width), padding_slot, np.int32)
        self.length: Ints = np.zeros(num_rows, np.int32)
        self.capacity: Ints = np.zeros(num_rows, np.int32)
        self.remaining: Ints = np.zeros(num_rows, np.int32)
        self.prompt: Ints = np.zeros(num_rows, np.int32)
        self.job_ids: NDArray[np.int64] = np.full(num_rows, NOBODY, np.int64)
        self.choices: Ints = np.zeros(num_rows, np.int32)
        self._padding_slot = padding_slot
        self._free = list(range(num_rows - 1, -1, -1))
        self._writes: list[Ints] = []

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
        self.length[row] = self.capacity[row] = self.remaining[row] = 0
        self.job_ids[row] = NOBODY
        self._free.append(row)

    def write(self, row: int, start: int, slots: Ints) -> None:
        """Put the slots of positions from `start` on; they become the end of the row."""
        end = min(start + len(slots), self.width)
        self.table[row, start:end] = slots[: end - start]
        self.capacity[row] = end
        self._writes.append(np.array(((row, start, end),), np.int32))

    def extend(self, rows: Indexes, slots: Ints) -> None:
        """Put `slots [len(rows), n]` behind what the rows hold."""
        starts = self.capacity[rows]
        columns = starts[:, None] + np.arange(slots.shape[1], dtype=np.int32)
        inside = columns < self.width
        self.table[np.broadcast_to(rows[:, None], columns.shape)[inside], columns[inside]] = slots[inside]
        self.capacity[rows] = ends = np.minimum(starts + slots.shape[1], self.width)
        self._writes.append(np.stack((rows, starts, ends), axis=1, dtype=np.int32, casting="same_kind"))

    def decoding(self) -> Indexes:
        """Rows that decode in the next step, ascending."""
        return self.remaining.nonzero()[0]

    def take_writes(self) -> Ints:
        """[n, 3]: row, first column and end of each write to the table since the last call; rows that were given back
        are not told."""
        if not self._writes:
            return NO_WRITES
        writes, self._writes = self._writes, []
        return np.concatenate(writes)
