"""Embedding rows of the newest ids, with what the first layer's fused norm needs beside them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, next_power_of_2, release_next, wait_for_previous
from kernels.skinny_gemm import NormOut


@triton.jit
def _embedding(ids_ptr, table_ptr, out_ptr, norm_ptr, scaled_ptr, squares_ptr, width, table_stride, out_stride,
               scaled_stride, squares_stride, TILES: tl.constexpr, TILES_P2: tl.constexpr, BLOCK: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    """Grid `(rows,)`; offsets into the table are 64-bit."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < width
    weight = tl.load(norm_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    token = tl.load(ids_ptr + row).to(tl.int64)
    value = tl.load(table_ptr + token * table_stride + cols, mask=inside, other=0.0)
    release_next(PDL)
    tl.store(out_ptr + row * out_stride + cols, value, mask=inside)
    x = value.to(tl.float32)
    tl.store(scaled_ptr + row * scaled_stride + cols, (x * weight).to(scaled_ptr.dtype.element_ty), mask=inside)
    tiles = tl.arange(0, TILES_P2)
    squares = tl.where(tiles == 0, tl.sum(x * x), 0.0)  # the whole sum counts as the first tile's
    tl.store(squares_ptr + tiles * squares_stride + row, squares, mask=tiles < TILES)


def embedding(
    ids: torch.Tensor, table: torch.Tensor, out: torch.Tensor, norm: NormOut, num_tiles: int, *, pdl: bool = False
) -> None:
    """Write `table[ids]` into `out`, and the first norm's edges into `norm` (`skinny_gemm.NormOut`).

    Args:
        ids: `[rows]` int32 | int64, each < `table.shape[0]`.
        table: `[vocab, width]`.
        out: `[rows, width]`, written.
        num_tiles: tiles of `norm.squares` that the next product adds up.

    Raises:
        ValueError: a shape does not fit.
    """
    rows, width = out.shape
    expect_shape("ids", ids, (rows,))
    expect_shape("table", table, (None, width))
    block = next_power_of_2(width)
    _embedding[(rows,)](
        ids, table, out, norm.weight, norm.scaled, norm.squares, width, table.stride(0), out.stride(0),
        norm.scaled.stride(0), norm.squares.stride(0), TILES=num_tiles, TILES_P2=next_power_of_2(num_tiles),
        BLOCK=block, num_warps=min(max(block // 512, 1), 16), **dependent(pdl),
    )  # fmt: skip
