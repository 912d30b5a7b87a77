"""The likeliest token of each row where every rank has the logits of its own share of the vocabulary.

Each rank has found the best of its share (`kernels.argmax`); it leaves value and id in its block, meets the others and
takes the best of all. Ties go to the lowest id, as on one rank: shares follow each other in the order of ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, release_next, wait_for_previous
from kernels.ranks import PeerMemory, meet

BLOCK_ROWS = 32


@triton.jit
def _rank_pick(addresses_ptr, epochs_ptr, logits_ptr, ids_ptr, row_stride, rows, max_rows, share, picks_at, flags_at,
               RANK: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(cdiv(rows, BLOCK),)`; logit offsets are 64-bit."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    wait_for_previous(PDL)
    release_next(PDL)
    own_id = tl.load(ids_ptr + row, mask=live, other=0)
    logit = tl.load(logits_ptr + row.to(tl.int64) * row_stride + own_id, mask=live, other=0.0).to(tl.float32)
    values = (tl.load(addresses_ptr + RANK) + picks_at).to(tl.pointer_type(tl.float32))
    tl.store(values + row, logit, mask=live)
    tl.store(values.to(tl.pointer_type(tl.int32)) + max_rows + row, own_id + RANK * share, mask=live)
    meet(addresses_ptr, epochs_ptr, tl.program_id(0), flags_at, RANK, COUNT)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], 2147483647, tl.int32)
    for r in tl.static_range(COUNT):
        there = (tl.load(addresses_ptr + r) + picks_at).to(tl.pointer_type(tl.float32))
        value = tl.load(there + row, mask=live, other=0.0, cache_modifier=".cg")
        its_id = tl.load(there.to(tl.pointer_type(tl.int32)) + max_rows + row, mask=live, other=0, cache_modifier=".cg")
        better = (value > best) | ((value == best) & (its_id < best_id))
        best, best_id = tl.where(better, value, best), tl.where(better, its_id, best_id)
    tl.store(ids_ptr + row, best_id, mask=live)


def rank_pick(
    memory: PeerMemory, picks_at: int, max_rows: int, logits: torch.Tensor, ids: torch.Tensor, *, pdl: bool = False
) -> None:
    """Replace the best id of this rank's share by the best of all; all ranks launch it alike.

    Args:
        picks_at: bytes into each block where `max_rows` values and as many ids lie, 4 bytes each. Between two launches
            ranks must have met otherwise, so that nobody still reads what the second one writes.
        logits: `[rows, vocab / count]` of this rank's share.
        ids: `[rows]` int32, columns of `logits` before, ids of the vocabulary after.

    Raises:
        ValueError: more rows than there is room for, or a shape does not fit.
    """
    rows, share = logits.shape
    expect_shape("ids", ids, (rows,))
    grid = (triton.cdiv(rows, BLOCK_ROWS),)
    if rows > max_rows or grid[0] > memory.slots:
        raise ValueError(f"logits: {rows} rows, there is room for {max_rows}")
    _rank_pick[grid](
        memory.addresses, memory.epochs, logits, ids, logits.stride(0), rows, max_rows, share, picks_at,
        memory.flags_at, RANK=memory.rank, COUNT=memory.count, BLOCK=BLOCK_ROWS, num_warps=1, **dependent(pdl),
    )  # fmt: skip
