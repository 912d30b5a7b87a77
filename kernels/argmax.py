"""The largest logit's id of each row: greedy sampling without a softmax or a sort. Ties go to the lowest id."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import (
    dependent,
    expect_rows_contiguous,
    expect_shape,
    next_power_of_2,
    release_next,
    wait_for_previous,
)


@dataclass(frozen=True, slots=True)
class ArgmaxScratch:
    """`values [max_rows, splits]` float32 and `ids` int32; `arrived [max_rows]` int32, zero between launches."""

    values: torch.Tensor
    ids: torch.Tensor
    arrived: torch.Tensor

    @staticmethod
    def allocate(max_rows: int, device: torch.device, splits: int = 16) -> ArgmaxScratch:
        """Return scratch for up to `max_rows` rows, each shared by `splits` programs."""
        return ArgmaxScratch(
            torch.empty(max_rows, splits, device=device),
            torch.empty(max_rows, splits, dtype=torch.int32, device=device),
            torch.zeros(max_rows, dtype=torch.int32, device=device),
        )


@triton.jit
def _argmax(logits_ptr, values_ptr, partial_ids_ptr, arrived_ptr, out_ptr, vocab, row_stride, SPLITS: tl.constexpr,
            SPLITS_P2: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(rows, SPLITS)`; the program of a row that finishes last picks among the splits' winners."""
    row = tl.program_id(0)
    split = tl.program_id(1)
    wait_for_previous(PDL)
    share = tl.cdiv(tl.cdiv(vocab, SPLITS), BLOCK) * BLOCK
    first = split * share
    base = logits_ptr + row.to(tl.int64) * row_stride
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.minimum(first + tl.arange(0, BLOCK), vocab - 1)  # a valid id even where no logit is finite
    for start in range(first, tl.minimum(first + share, vocab), BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
        best_id = tl.where(x > best, cols, best_id)
        best = tl.maximum(x, best)
    release_next(PDL)
    top = tl.max(best)
    winner = tl.min(tl.where(best == top, best_id, 2147483647))
    tl.store(values_ptr + row * SPLITS + split, top)
    tl.store(partial_ids_ptr + row * SPLITS + split, winner)
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr + row, 1, sem="acq_rel") == SPLITS - 1:
        s = tl.arange(0, SPLITS_P2)
        inside = s < SPLITS
        tops = tl.load(values_ptr + row * SPLITS + s, mask=inside, other=float("-inf"), cache_modifier=".cg")
        ids = tl.load(partial_ids_ptr + row * SPLITS + s, mask=inside, other=2147483647, cache_modifier=".cg")
        chosen = tl.min(tl.where(tops == tl.max(tops), ids, 2147483647))
        tl.store(out_ptr + row, chosen.to(out_ptr.dtype.element_ty))
        tl.store(arrived_ptr + row, 0)


def argmax(logits: torch.Tensor, out: torch.Tensor, scratch: ArgmaxScratch, *, pdl: bool = False) -> None:
    """Write the id of each row's largest logit into `out`.

    Args:
        logits: `[rows, vocab]`, bf16 | fp16 | fp32, last dimension contiguous.
        out: `[rows]` int32 | int64, written.

    Raises:
        ValueError: a shape does not fit, or `scratch` has too few rows.
    """
    rows, vocab = logits.shape
    expect_shape("out", out, (rows,))
    expect_rows_contiguous("logits", logits)
    if rows > scratch.arrived.shape[0]:
        raise ValueError(f"scratch: expected at least {rows} rows, got {scratch.arrived.shape[0]}")
    splits = scratch.values.shape[1]
    _argmax[(rows, splits)](
        logits, scratch.values, scratch.ids, scratch.arrived, out, vocab, logits.stride(0), SPLITS=splits,
        SPLITS_P2=next_power_of_2(splits), BLOCK=2048, num_warps=8, **dependent(pdl),
    )  # fmt: skip
