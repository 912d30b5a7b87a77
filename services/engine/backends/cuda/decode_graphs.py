"""Decode steps as CUDA graphs over a ladder of row counts, with greedy sampling and the next ids inside.

A graph reads `rows` and `context_lens` where staging puts them first, takes its ids from the table of next ids, and
leaves the argmax of each row in `sampled`, in that table and with the host. Rows beyond a step's own have length 0 and
name the padding row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.argmax import ArgmaxScratch, argmax
from kernels.indexed import gather_ints, publish_ids
from kernels.layout import Heads, Rope, SlotTable
from services.engine.backends.cuda.clock import captured
from services.engine.backends.cuda.decode_step import DecodeBuffers, DecodeStep
from services.engine.backends.cuda.rank_sums import RankSums
from services.engine.backends.cuda.recipe import DecodeRecipe
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.models.layers import Decoder

log = logging.getLogger(__name__)


def ladder(max_rows: int) -> list[int]:
    """Row counts that have a graph: at most 8 rows of padding up to 64, 16 up to 256, an eighth beyond."""
    rungs = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 16)]
    rung = 256
    while rung < max_rows:
        rungs.append(rung)
        rung += max(32, rung // 8 // 32 * 32)
    return [r for r in rungs if r < max_rows] + [max_rows]


class DecodeGraphs:
    """Owned by the backend. All graphs share their buffers: they run one after another on one stream."""

    def __init__(  # noqa: PLR0913 - what a step is made of
        self, decoder: Decoder, heads: Heads, rope: Rope, pool: Tensor, table: DeviceTable,
        rows: Tensor, context_lens: Tensor, host_block: Tensor, recipe_of: Callable[[int], DecodeRecipe],
        sums: RankSums | None,
    ) -> None:  # fmt: skip
        """`rows`, `context_lens`: `[max_rows]` int32 on the device, at their lasting addresses; `host_block`: likewise
        `[1]` int64, the address of the pinned memory that takes a step's ids."""
        max_rows, device = len(rows), pool.device
        self._rungs = ladder(max_rows)
        self._buffers = DecodeBuffers(decoder, heads, max_rows, decoder.head.shape[0])
        self.logits = self._buffers.logits
        """Of this rank's share of the vocabulary, where that is split."""
        self._sums = sums
        self._is_split = decoder.head.shape[0] < decoder.vocab_size
        self.sampled = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._ids = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._scratch = ArgmaxScratch.allocate(max_rows, device)
        self._table, self._rows, self._lens, self._host_block = table, rows, context_lens, host_block
        began = time.monotonic()
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._graphs: dict[int, Callable[[], object]] = {}
        self._steps: list[DecodeStep] = []  # a graph knows the addresses of their tensors only: they must live on
        for rung in reversed(self._rungs):  # the largest first: the others fit into its memory
            recipe = recipe_of(rung)
            step = DecodeStep(decoder, heads, rope, pool, self._buffers, rung, recipe, sums)
            self._steps.append(step)
            self._graphs[rung] = captured(self._launches(step, rung, recipe), device, memory)
            log.info("decode graph for %d rows, %d of %d, %.1f s", rung, len(self._graphs), len(self._rungs),
                     time.monotonic() - began)  # fmt: skip

    def rung(self, num_rows: int) -> int:
        """Rows of the smallest graph that holds `num_rows`."""
        return next(rung for rung in self._rungs if rung >= num_rows)

    def launch(self, num_rows: int) -> None:
        """Launch a step of `num_rows` rows, whose inputs have been copied."""
        self._graphs[self.rung(num_rows)]()

    def _launches(self, step: DecodeStep, n: int, recipe: DecodeRecipe) -> Callable[[], None]:
        rows, lens, ids, sampled = self._rows[:n], self._lens[:n], self._ids[:n], self.sampled[:n]
        next_ids, slots = self._table.next_ids, SlotTable(self._table.table, rows)

        def launches() -> None:
            gather_ints(next_ids, rows, ids)
            logits = step(ids, lens, slots)
            argmax(logits, sampled, self._scratch, pdl=recipe.pdl)
            if self._is_split and self._sums is not None:
                self._sums.pick(logits, sampled, pdl=recipe.pdl)
            publish_ids(sampled, rows, next_ids, self._host_block, pdl=recipe.pdl)

        return launches
