"""The rows that decode together, as lists and arrays: made again only when a sequence joins them or leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.engine.arrays import Bools, Indexes, Ints
from services.engine.jobs import Sequence
from services.engine.rows import Rows

FROM_DEVICE = -1
"""In `Batch.input_ids`: the id that the row sampled in an earlier step, which the host may not know yet."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """B sequences, in the order of their rows."""

    rows: Indexes  # [B], ascending
    job_ids: NDArray[np.int64]  # [B]
    choices: Ints  # [B]
    sequences: list[Sequence]
    outputs: list[list[int]]
    """Theirs, to append to."""
    stop_ids: frozenset[int]
    """Of any of them."""
    input_ids: Ints  # [B]: FROM_DEVICE
    order: Ints  # 0 to B - 1

    def still_there(self, rows: Rows) -> Bools:
        """[B]: which have not ended since: a row is given back at once, and job ids never come again."""
        there: Bools = rows.job_ids[self.rows] == self.job_ids
        return there


def group_of(decode: Indexes, rows: Rows, sequences: list[Sequence]) -> DecodeGroup:
    """Of the rows `decode`, whose sequences these are."""
    return DecodeGroup(
        rows=decode,
        job_ids=rows.job_ids[decode],
        choices=rows.choices[decode],
        sequences=sequences,
        outputs=[each.outputs for each in sequences],
        stop_ids=frozenset().union(*{each.job.stop_token_ids for each in sequences}),
        input_ids=np.full(len(decode), FROM_DEVICE, np.int32),
        order=np.arange(len(decode), dtype=np.int32),
    )
