"""The device's copy of the slot table, and the next input id of every request row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from kernels.indexed import scatter_ints
from services.engine.arrays import Ints
from services.engine.backends.cuda.staging import Staging
from services.engine.rows import Rows

_WIDTH_MULTIPLE = 32


class DeviceTable:
    """Written by launches only, in the order of steps; the last row stands for padding.

    A row that is given back keeps its entries: they name slots, and lie beyond the length of whoever has it next.
    """

    def __init__(self, rows: Rows, padding_slot: int, device: torch.device) -> None:
        self._rows = rows
        num_rows, width = rows.table.shape
        width = -(-width // _WIDTH_MULTIPLE) * _WIDTH_MULTIPLE
        self.table = torch.full((num_rows + 1, width), padding_slot, dtype=torch.int32, device=device)
        self.next_ids = torch.zeros(num_rows + 1, dtype=torch.int32, device=device)
        self.padding_row = num_rows
        self.padding_slot = padding_slot
        self._given: list[tuple[int, int]] = []

    @property
    def on_host(self) -> Ints:
        """`[num_rows, width]`: the host's own."""
        return self._rows.table

    def give_ids(self, rows: list[int], ids: list[int]) -> None:
        """Set next ids from the host, before the next step's launches."""
        self._given += zip(rows, ids, strict=True)

    def send(self, writes: Ints, staging: Staging) -> None:
        """Pack what has changed since the last step, `writes` as of `Rows.take_writes`, send it with all that is packed
        already, and launch what writes it."""
        launches: list[Callable[[], None]] = []
        if len(writes):
            index, values = self._changed(writes)
            if len(index):
                launches.append(_writing(staging.put(values), staging.put(index), self.table))
        if self._given:
            rows, ids = np.array(self._given, np.int32).T
            launches.append(_writing(staging.put(ids), staging.put(rows), self.next_ids))
            self._given = []
        staging.send()
        for launch in launches:
            launch()

    def _changed(self, writes: Ints) -> tuple[Ints, Ints]:
        """Flat positions and slots, as the host's table has them now; a place that was written twice comes twice."""
        table, (rows, starts, ends) = self._rows.table, writes.T
        lengths = np.maximum(np.minimum(ends, self._rows.capacity[rows]) - starts, 0)
        before = np.cumsum(lengths, dtype=np.int32) - lengths
        each = np.arange(before[-1] + lengths[-1], dtype=np.int32)
        here = each + np.repeat(rows * table.shape[1] + starts - before, lengths)
        wider = self.table.shape[1] - table.shape[1]
        there = here + np.repeat(rows * wider, lengths) if wider else here
        return there, table.reshape(-1).take(here)


def _writing(values: Tensor, index: Tensor, out: Tensor) -> Callable[[], None]:
    return lambda: scatter_ints(values, index, out)
