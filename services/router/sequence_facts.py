"""What predictions need to know of each ledger row, as one structured array: thousands are predicted at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.router.output_length import Sequences
from services.router.peak_memory import IntArray
from services.router.waiting import Waiting

_FIELDS = np.dtype(
    [
        ("produced", np.int64),
        ("min_new", np.int64),
        ("max_new", np.int64),
        ("group", np.int64),
        ("unit", np.float64),
        ("decoding", np.bool_),
    ]
)


class SequenceFacts:
    """Rows are the ledger's. `produced` of a decoding row is kept less the step, so that growing changes nothing."""

    def __init__(self) -> None:
        self._facts = np.zeros(64, dtype=_FIELDS)

    def put(self, row: int, entry: Waiting, unit: float) -> None:
        """A row that does not decode yet."""
        while row >= len(self._facts):
            self._facts = np.concatenate((self._facts, np.zeros_like(self._facts)))
        work = entry.work
        max_new = work.max_new_tokens if work.grows else 0
        self._facts[row] = (work.produced_tokens, work.min_new_tokens, max_new, entry.group, unit, False)

    def start(self, row: int, now: int) -> None:
        """The row decodes from step `now` on."""
        self._facts["produced"][row] -= now
        self._facts["decoding"][row] = True

    def decoding(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """[n] which of these rows decode."""
        return self._facts["decoding"][rows]

    def joining(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """[n] which of these rows will decode here and do not yet."""
        return ~self._facts["decoding"][rows] & (self._facts["max_new"][rows] > 0)

    def produced(self, row: int, now: int) -> int:
        """Output tokens of one row at step `now`."""
        return int(self._facts["produced"][row]) + (now if self._facts["decoding"][row] else 0)

    def sequences(self, rows: IntArray, now: int) -> Sequences:
        """These rows as they stand at step `now`."""
        facts = self._facts[rows]
        return Sequences(
            produced=facts["produced"] + np.where(facts["decoding"], now, 0),
            min_new=facts["min_new"],
            max_new=facts["max_new"],
            unit=facts["unit"],
            group=facts["group"],
        )
