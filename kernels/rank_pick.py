"""The likeliest token of each row where every rank has the logits of its own share of the vocabulary.

Each rank has found the best of its share (`kernels.argmax`); it sends value and id to the others and takes the best of
all. Ties go to the lowest id, as on one rank: shares follow each other in the order of ranks.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, release_next, wait_for_previous
from kernels.ranks import Mailbox, hear_wide, tell_wide

BLOCK_ROWS = 32
WORDS = 2
"""Of each row: the value and the id."""


@triton.jit
def _rank_pick(addresses_ptr, epochs_ptr, logits_ptr, ids_ptr, row_stride, rows, places, share, RANK: tl.constexpr,
               COUNT: tl.constexpr, BLOCK: tl.constexpr, WORDS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(cdiv(rows, BLOCK),)`; logit offsets are 64-bit."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < rows
    at = tl.program_id(0) * (WORDS * BLOCK)
    wait_for_previous(PDL)
    release_next(PDL)
    epoch = tl.load(epochs_ptr + tl.program_id(0)) + 1
    own_id = tl.load(ids_ptr + row, mask=live, other=0)
    best = tl.load(logits_ptr + row.to(tl.int64) * row_stride + own_id, mask=live, other=0.0).to(tl.float32)
    best = tl.where(best == best, best, float("-inf"))  # beside NaN every rank would keep its own
    best_id = own_id + RANK * share
    tell_wide(addresses_ptr, epoch, places, at, best, live, RANK, COUNT)
    tell_wide(addresses_ptr, epoch, places, at + BLOCK, best_id, live, RANK, COUNT)
    for i in tl.static_range(1, COUNT):
        value = hear_wide(addresses_ptr, epoch, places, at, live, (RANK + i) % COUNT, tl.float32, RANK, COUNT)
        its_id = hear_wide(addresses_ptr, epoch, places, at + BLOCK, live, (RANK + i) % COUNT, tl.int32, RANK, COUNT)
        better = (value > best) | ((value == best) & (its_id < best_id))
        best, best_id = tl.where(better, value, best), tl.where(better, its_id, best_id)
    tl.store(epochs_ptr + tl.program_id(0), epoch)
    tl.store(ids_ptr + row, best_id, mask=live)


def places_of(rows: int) -> int:
    """Words that picks of `rows` rows need in a box."""
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS * WORDS


def rank_pick(box: Mailbox, logits: torch.Tensor, ids: torch.Tensor, *, pdl: bool = False) -> None:
    """Replace the best id of this rank's share by the best of all; all ranks launch it alike.

    Args:
        box: with `places_of` such rows or more.
        logits: `[rows, vocab / count]` of this rank's share.
        ids: `[rows]` int32, columns of `logits` before, ids of the vocabulary after.

    Raises:
        ValueError: more rows than there is room for, or a shape does not fit.
    """
    rows, share = logits.shape
    expect_shape("ids", ids, (rows,))
    room = min(box.places // WORDS, BLOCK_ROWS * min(box.slots, box.programs))
    if rows > room:
        raise ValueError(f"logits: {rows} rows, there is room for {room}")
    _rank_pick[(triton.cdiv(rows, BLOCK_ROWS),)](
        box.addresses, box.epochs, logits, ids, logits.stride(0), rows, box.places, share, RANK=box.rank,
        COUNT=box.count, BLOCK=BLOCK_ROWS, WORDS=WORDS, num_warps=1, **dependent(pdl),
    )  # fmt: skip
