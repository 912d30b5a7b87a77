"""The sum over ranks behind a split product, with the edges that the product would have had on one rank.

`residual += sum_r partial_r`, and where there is a norm behind it `scaled = residual * weight` and each tile's sums of
squares, as `kernels.skinny_gemm` leaves them. Every rank reads all partial sums from the blocks where their products
left them, in the order of ranks, so that all have the same bits. One launch and one meeting: at the sizes of a decode
step it is latency that counts, and with two ranks no other way moves fewer bytes.

A block is written again only two sums later: a rank that meets the others in the sum between has ended the first one,
so nobody reads any more what the next product overwrites.
"""

from __future__ import annotations

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
from kernels.ranks import PeerMemory, meet
from kernels.skinny_gemm import NormOut

BLOCK = 1024
_WARPS = 4


@triton.jit
def _rank_sum(addresses_ptr, epochs_ptr, residual_ptr, norm_ptr, scaled_ptr, squares_ptr, partial_at, flags_at, width,
              residual_stride, scaled_stride, squares_stride, RANK: tl.constexpr, COUNT: tl.constexpr,
              BLOCK: tl.constexpr, NORM_OUT: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(rows, cdiv(width, BLOCK))`; row offsets are 64-bit."""
    row, tile = tl.program_id(0), tl.program_id(1)
    cols = tile * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    if NORM_OUT:
        weight = tl.load(norm_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    release_next(PDL)
    home = residual_ptr + row.to(tl.int64) * residual_stride + cols
    total = tl.load(home, mask=inside, other=0.0).to(tl.float32)
    meet(addresses_ptr, epochs_ptr, row * tl.num_programs(1) + tile, flags_at, RANK, COUNT)
    for r in tl.static_range(COUNT):
        partial = (tl.load(addresses_ptr + r) + partial_at).to(tl.pointer_type(residual_ptr.dtype.element_ty))
        there = tl.multiple_of(partial, 16) + row.to(tl.int64) * width + cols
        total += tl.load(there, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    rounded = total.to(residual_ptr.dtype.element_ty)
    tl.store(home, rounded, mask=inside)
    if NORM_OUT:
        value = rounded.to(tl.float32)
        scaled = (value * weight).to(scaled_ptr.dtype.element_ty)
        tl.store(scaled_ptr + row.to(tl.int64) * scaled_stride + cols, scaled, mask=inside)
        tl.store(squares_ptr + tile * squares_stride + row, tl.sum(value * value))


def num_tiles(width: int) -> int:
    """Tiles of a row, each with its own sum of squares."""
    return -(-width // min(BLOCK, next_power_of_2(width)))


def rank_sum(
    memory: PeerMemory, partial_at: int, residual: torch.Tensor, norm_out: NormOut | None = None, *, pdl: bool = False
) -> None:
    """Add every rank's partial sums to `residual`; all ranks launch it alike.

    Args:
        partial_at: bytes into each block, a multiple of 16, where `[rows, width]` of residual's dtype lie, contiguous.
        residual: `[rows, width]`, bf16 | fp16 | fp32, the same on all ranks, last dimension contiguous.
        norm_out: `squares` has `num_tiles(width)` lines or more.

    Raises:
        ValueError: more programs than can meet, or a shape does not fit.
    """
    rows, width = residual.shape
    expect_rows_contiguous("residual", residual)
    grid = (rows, num_tiles(width))
    if grid[0] * grid[1] > memory.slots:
        raise ValueError(f"residual: {grid[0] * grid[1]} programs, {memory.slots} can meet")
    if norm_out is not None:
        expect_shape("norm_out.weight", norm_out.weight, (width,))
    _rank_sum[grid](
        memory.addresses, memory.epochs, residual, norm_out.weight if norm_out else residual,
        norm_out.scaled if norm_out else residual, norm_out.squares if norm_out else memory.epochs, partial_at,
        memory.flags_at, width, residual.stride(0), norm_out.scaled.stride(0) if norm_out else 0,
        norm_out.squares.stride(0) if norm_out else 0, RANK=memory.rank, COUNT=memory.count,
        BLOCK=min(BLOCK, next_power_of_2(width)), NORM_OUT=norm_out is not None, num_warps=_WARPS, **dependent(pdl),
    )  # fmt: skip
