"""A batch's chunks of prompts as a `PrefillBatch`, as they are; `padded_chunks` has those of a fixed shape."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from torch import Tensor

from kernels.layout import SlotTable
from kernels.prefill_attention import prefill_tiles
from services.engine.arrays import Ints
from services.engine.backends.cuda.prefill_step import PrefillBatch
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch

_ENDS = (0, 8, 64, 512)
"""How many tokens a step's logits are computed of: cuBLAS loads other kernels, tens of milliseconds, for other
numbers."""
_NONE: Ints = np.empty(0, np.int32)


def chunk_ids(batch: Batch) -> Ints:
    """Those of the chunks' tokens, which stand behind the decode rows in the batch."""
    return batch.input_ids[batch.num_decode_rows :]


def logits_tokens(batch: Batch) -> Ints:
    """The chunks' tokens whose logits are needed, counted from the first of them."""
    n = batch.num_decode_rows
    return batch.logits_tokens[n:] - np.int32(n)


def last_tiles(lengths: list[int]) -> list[tuple[int, int]]:
    """As `prefill_tiles`, of each chunk's last token alone."""
    return [(row, length - 1) for row, length in enumerate(lengths)]


def stage_chunks(
    batch: Batch, ids: Tensor, table: DeviceTable, staging: Staging, block_queries: int
) -> PrefillBatch:  # fmt: skip
    """Pack all of the chunks but their ids, which lie in `ids`."""
    chunks = batch.chunks
    lengths, ends = [chunk.length for chunk in chunks], [chunk.end for chunk in chunks]
    positions, slots, query_start, context_lens, rows, wanted, tiles, last, scored = staging.put_all([
        batch.prompt_positions(), batch.prompt_slots(table.on_host), _ints([0, *accumulate(lengths)]), _ints(ends),
        _ints([chunk.row for chunk in chunks]), _with_room(logits_tokens(batch)),
        _ints(prefill_tiles(lengths, ends, block_queries)), _ints(last_tiles(lengths)), _scored(batch),
    ])  # fmt: skip
    equal = len(set(lengths)) == 1 and all(chunk.start == 0 for chunk in chunks)
    return PrefillBatch(
        ids=ids, positions=positions, slots=slots, query_start=query_start, context_lens=context_lens,
        tiles=tiles.view(-1, 2), last_tiles=last.view(-1, 2), table=SlotTable(table.table, rows), logits_tokens=wanted,
        whole=(len(chunks), lengths[0]) if equal else None, scored=scored if batch.scored else None,
    )  # fmt: skip


def _ints(values: object) -> Ints:
    return np.array(values, np.int32)


def _with_room(wanted: Ints) -> Ints:
    """As many as cuBLAS knows, the first token again for those that nobody wants."""
    n = len(wanted)
    room = next((each for each in _ENDS if each >= n), n)
    return np.concatenate((wanted, np.zeros(room - n, np.int32)))


def _scored(batch: Batch) -> Ints:
    """Tokens that tell how likely the ones behind them are."""
    n = batch.num_decode_rows
    return np.concatenate(
        [_NONE, *(np.arange(each.rows.start - n, each.rows.stop - n, dtype=np.int32) for each in batch.scored)]
    )
