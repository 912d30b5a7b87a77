"""A batch's chunks of prompts as a `PrefillBatch`, as they are or padded to a fixed shape.

Padding tokens are a chunk of their own behind the real ones, so that what they compute is finite: they attend to the
padding slot, which their K and V are written to. A last, empty chunk takes the tiles that are left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kernels.layout import SlotTable
from kernels.prefill_attention import prefill_tiles
from services.engine.backends.cuda.prefill_step import PrefillBatch
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch

_ENDS = (0, 8, 64, 512)
"""How many tokens a step's logits are computed of: cuBLAS loads other kernels, tens of milliseconds, for other
numbers."""


class PaddedShape(NamedTuple):
    """Room of a padded batch; two chunks of padding follow the real ones."""

    num_tokens: int
    num_chunks: int


@dataclass(slots=True)
class _Chunks:
    """Host lists behind a `PrefillBatch`."""

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    rows: list[int]
    lengths: list[int]
    ends: list[int]
    logits_tokens: list[int]
    scored: list[int]
    """Tokens that tell how likely the ones behind them are."""


def stage_chunks(batch: Batch, table: DeviceTable, staging: Staging, block_queries: int) -> PrefillBatch:
    """Pack the chunks; their tokens stand behind the decode rows in the batch."""
    chunks = _chunks_of(batch)
    lengths = chunks.lengths
    equal = all(chunk.start == 0 for chunk in batch.chunks) and len(set(lengths)) == 1
    ends = len(chunks.logits_tokens)
    chunks.logits_tokens += [0] * (next((n for n in _ENDS if n >= ends), ends) - ends)
    tiles = prefill_tiles(lengths, chunks.ends, block_queries)
    last = [(i, length - 1) for i, length in enumerate(lengths)]
    return _put(chunks, tiles, last, table.table, staging, (len(lengths), lengths[0]) if equal else None)


def stage_padded(
    batch: Batch | None, shape: PaddedShape, table: DeviceTable, staging: Staging, block_queries: int
) -> PrefillBatch:
    """Pack chunks as a batch of a fixed shape: arrays of the same sizes whatever the batch holds."""
    num_tokens, most_chunks = shape
    chunks = _empty() if batch is None else _chunks_of(batch)
    num_chunks, real = len(chunks.lengths), len(chunks.ids)
    padding, unused = num_tokens - real, most_chunks - num_chunks
    last = [(i, length - 1) for i, length in enumerate(chunks.lengths)]
    chunks.ids = np.concatenate((chunks.ids, np.zeros(padding, np.int32)))
    chunks.positions = np.concatenate((chunks.positions, np.zeros(padding, np.int32)))
    chunks.slots = np.concatenate((chunks.slots, np.full(padding, table.padding_slot, np.int32)))
    chunks.rows += [table.padding_row] * (unused + 2)
    chunks.lengths += [0] * unused + [padding, 0]
    chunks.ends += [0] * unused + [padding, 0]
    chunks.logits_tokens += [0] * (most_chunks - len(chunks.logits_tokens))
    nothing = (most_chunks + 1, 0)
    tiles = prefill_tiles(chunks.lengths, chunks.ends, block_queries)
    tiles += [nothing] * (num_tokens // block_queries + most_chunks + 1 - len(tiles))
    return _put(chunks, tiles, last + [nothing] * unused, table.table, staging, None)


def _empty() -> _Chunks:
    nothing = np.empty(0, np.int32)
    return _Chunks(nothing, nothing, nothing, [], [], [], [], [])


def _chunks_of(batch: Batch) -> _Chunks:
    n = batch.num_decode_rows
    scored = [at - n for each in batch.scored for at in range(each.rows.start, each.rows.stop)]
    return _Chunks(
        batch.input_ids[n:], batch.positions[n:], batch.out_slots[n:], [c.row for c in batch.chunks],
        [c.length for c in batch.chunks], [c.end for c in batch.chunks], (batch.logits_tokens[n:] - n).tolist(), scored,
    )  # fmt: skip


def _put(
    chunks: _Chunks, tiles: list[tuple[int, int]], last: list[tuple[int, int]], table: torch.Tensor, staging: Staging,
    whole: tuple[int, int] | None,
) -> PrefillBatch:  # fmt: skip
    def put(values: object) -> torch.Tensor:
        return staging.put(np.asarray(values, np.int32))

    return PrefillBatch(
        ids=put(chunks.ids),
        positions=put(chunks.positions),
        slots=put(chunks.slots),
        query_start=put(np.concatenate(([0], np.cumsum(chunks.lengths)))),
        context_lens=put(chunks.ends),
        tiles=put(tiles),
        last_tiles=put(last),
        table=SlotTable(table, put(chunks.rows)),
        logits_tokens=put(chunks.logits_tokens),
        scored=put(chunks.scored) if chunks.scored else None,
        whole=whole,
    )
