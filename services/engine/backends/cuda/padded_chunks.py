"""Chunks of prompts padded to a fixed shape, for a graph, which finds all arrays where they were when it was captured.

Padding tokens are a chunk of their own behind the real ones, so that what they compute is finite: they attend to the
padding slot, which their K and V are written to. A last, empty chunk takes the tiles that are left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from kernels.layout import SlotTable
from kernels.prefill_attention import prefill_tiles
from services.engine.arrays import Ints
from services.engine.backends.cuda.chunks import chunk_ids, last_tiles, logits_tokens
from services.engine.backends.cuda.prefill_step import PrefillBatch
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import ALIGN_INTS, Staging
from services.engine.batch import Batch

_Block = TypeVar("_Block", Ints, Tensor)
_MOST_TOKENS = 8192
"""Of a step that is run beforehand. It takes a fifth of a second on an H200 (8B model); attention of larger ones would
take as long as the rest."""


class PaddedShape(NamedTuple):
    """Room of a padded batch; two chunks of padding follow the real ones."""

    num_tokens: int
    num_chunks: int


def sizes_beforehand(most: int, least: int = 1) -> list[int]:
    """How many tokens, up to `most`, the steps of padding have that are run before the first request.

    The largest come first: torch takes the memory that the others then fit into. Each has half as many as the one
    before, since products of other sizes have other kernels to load.
    """
    sizes = [min(most, _MOST_TOKENS)]
    while sizes[-1] >= 2 * least:
        sizes.append(sizes[-1] // 2)
    return sizes


class PaddedChunks:
    """One shape's arrays in one block, the first in its staging. A short prompt waits for their packing: what padding
    says is kept ready."""

    def __init__(self, shape: PaddedShape, table: DeviceTable, block_queries: int) -> None:
        n, most = self._shape = shape
        self._table, self._block_queries = table, block_queries
        self._no_tile = (most + 1, 0)
        tiles = prefill_tiles([0] * most + [n], [0] * most + [n], block_queries)
        tiles += [self._no_tile] * (n // block_queries + most + 1 - len(tiles))
        arrays: list[Ints] = [
            np.zeros(n, np.int32),  # ids
            np.zeros(n, np.int32),  # positions
            np.full(n, table.padding_slot, np.int32),  # slots
            np.array([0] * (most + 1) + [n, n], np.int32),  # where chunks begin
            np.array([0] * most + [n, 0], np.int32),  # context lengths
            np.full(most + 2, table.padding_row, np.int32),  # rows
            np.zeros(most, np.int32),  # tokens whose logits are needed
            np.array(tiles, np.int32).reshape(-1),
            np.array([self._no_tile] * most, np.int32).reshape(-1),  # last tiles
        ]
        *starts, total = accumulate((-(-len(each) // ALIGN_INTS) * ALIGN_INTS for each in arrays), initial=0)
        self._places = [slice(start, start + len(each)) for start, each in zip(starts, arrays, strict=True)]
        self._padding: Ints = np.zeros(total, np.int32)
        """All arrays of a batch of padding alone."""
        for part, values in zip(self._parts(self._padding), arrays, strict=True):
            part[:] = values

    def send_padding(self, staging: Staging) -> PrefillBatch:
        """Send padding alone; return where it is on the device, and where `stage` puts others."""
        staging.begin()
        parts = self._parts(staging.put(self._padding))
        staging.send()
        ids, positions, slots, query_start, context_lens, rows, wanted, tiles, last = parts
        return PrefillBatch(
            ids=ids, positions=positions, slots=slots, query_start=query_start, context_lens=context_lens,
            tiles=tiles.view(-1, 2), last_tiles=last.view(-1, 2), table=SlotTable(self._table.table, rows),
            logits_tokens=wanted, whole=None,
        )  # fmt: skip

    def stage(self, batch: Batch, staging: Staging) -> None:
        """Pack a batch's chunks."""
        block = staging.room(len(self._padding))
        block[:] = self._padding
        ids, positions, slots, query_start, context_lens, rows, wanted, tiles, last = self._parts(block)
        (num_tokens, most), n, num_real = self._shape, len(batch.chunks), batch.num_prefill_tokens
        ids[:num_real] = chunk_ids(batch)
        positions[:num_real] = batch.prompt_positions()
        slots[:num_real] = batch.prompt_slots(self._table.on_host)
        lengths, ends = [chunk.length for chunk in batch.chunks], [chunk.end for chunk in batch.chunks]
        query_start[1 : n + 1] = list(accumulate(lengths))
        query_start[n + 1 : most + 1] = num_real
        context_lens[:n], context_lens[most] = ends, num_tokens - num_real
        rows[:n] = [chunk.row for chunk in batch.chunks]
        chosen = logits_tokens(batch)
        wanted[: len(chosen)] = chosen
        padding = [0] * (most - n) + [num_tokens - num_real]
        found = prefill_tiles(lengths + padding, ends + padding, self._block_queries)
        tiles[: 2 * len(found)] = [number for tile in found for number in tile]
        tiles[2 * len(found) :].reshape(-1, 2)[:] = self._no_tile
        last[: 2 * n] = [number for tile in last_tiles(lengths) for number in tile]

    def _parts(self, block: _Block) -> Iterator[_Block]:
        return (block[place] for place in self._places)
