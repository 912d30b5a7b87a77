"""A batch's chunks of prompts as a `PrefillBatch`."""

from __future__ import annotations

import numpy as np
import torch

from kernels.layout import SlotTable
from kernels.prefill_attention import prefill_tiles
from services.engine.backends.cuda.prefill_step import PrefillBatch
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch


def stage_chunks(batch: Batch, table: torch.Tensor, staging: Staging, block_queries: int) -> PrefillBatch:
    """Pack the chunks; their tokens stand behind the decode rows in the batch."""
    n = batch.num_decode_rows
    lengths = [chunk.length for chunk in batch.chunks]
    ends = [chunk.end for chunk in batch.chunks]
    last = [(i, length - 1) for i, length in enumerate(lengths)]
    equal = all(chunk.start == 0 for chunk in batch.chunks) and len(set(lengths)) == 1

    def put(values: object) -> torch.Tensor:
        return staging.put(np.asarray(values, np.int32))

    rows = put([chunk.row for chunk in batch.chunks])
    return PrefillBatch(
        ids=staging.put(batch.input_ids[n:]),
        positions=staging.put(batch.positions[n:]),
        slots=staging.put(batch.out_slots[n:]),
        query_start=put(np.concatenate(([0], np.cumsum(lengths)))),
        context_lens=put(ends),
        tiles=put(prefill_tiles(lengths, ends, block_queries)),
        last_tiles=put(last),
        table=SlotTable(table, rows),
        logits_tokens=staging.put(batch.logits_tokens[n:] - n),
        whole=(len(lengths), lengths[0]) if equal else None,
    )
