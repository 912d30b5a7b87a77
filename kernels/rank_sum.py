"""The sum over ranks behind a split product, with the edges that the product would have had on one rank.

`residual += sum_r partial_r`, and where there is a norm behind it `scaled = residual * weight` and each tile's sums of
squares, as `kernels.skinny_gemm` leaves them. Every rank sends its partial sums to all others and adds up all of them
in the order of ranks, so that all have the same bits. One launch and one way over the wire: at the sizes of a decode
step it is latency that counts, and with two ranks no other way moves fewer values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import (
    dependent,
    expect_rows_contiguous,
    expect_shape,
    release_next,
    wait_for_previous,
)
from kernels.ranks import Mailbox, hear, tell, words_of
from kernels.skinny_gemm import NormOut

BLOCK = 256
_WARPS = 4
_REGISTERS_OF_ALL = 1 << 16
"""Of a multiprocessor."""


def _registers(count: int) -> int:
    """What a thread may have: 16-bit values of `count` ranks need no more, wide ones spill a little."""
    return 40 if count <= 2 else 64 if count <= 4 else 128


def programs_of(multiprocessors: int, count: int) -> int:
    """Programs of a sum over `count` ranks that a device holds at once."""
    return multiprocessors * (_REGISTERS_OF_ALL // (32 * _WARPS * _registers(count)))


@triton.jit
def _weights(norm_ptr, cols, width, NORM_OUT: tl.constexpr):
    """The norm's weights, if one follows."""
    weights = tl.zeros([cols.shape[0]], tl.float32)
    if NORM_OUT:
        weights = tl.load(norm_ptr + cols, mask=cols < width, other=0.0).to(tl.float32)
    return weights


@triton.jit
def _edges(total, home, weights, scaled_at, inside, NORM_OUT: tl.constexpr):
    """Write the residual, and where a norm follows its input; return each column's square."""
    rounded = total.to(home.dtype.element_ty)
    tl.store(home, rounded, mask=inside)
    value = rounded.to(tl.float32)
    if NORM_OUT:
        tl.store(scaled_at, (value * weights).to(scaled_at.dtype.element_ty), mask=inside)
    return value * value


@triton.jit
def _own(partial, a, b, c, width):
    """This rank's values of a row."""
    return (
        tl.load(partial + a, mask=a < width, other=0.0),
        tl.load(partial + b, mask=b < width, other=0.0),
        tl.load(partial + c, mask=c < width, other=0.0),
    )


@triton.jit(do_not_specialize=["rows"])
def _rank_sum(addresses_ptr, epochs_ptr, partial_ptr, residual_ptr, norm_ptr, scaled_ptr, squares_ptr, places, rows,
              width, residual_stride, scaled_stride, squares_stride, RANK: tl.constexpr, COUNT: tl.constexpr,
              BLOCK: tl.constexpr, NUM_WORDS: tl.constexpr, NORM_OUT: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(at most rows, num_tiles(width))`: a program takes the same tile of every so many-th row, and tells all of
    its values before it waits for any. A tile is three runs of BLOCK columns: a, b and c. Row offsets are 64-bit."""
    first, tile = tl.program_id(0), tl.program_id(1)
    a = tile * (3 * BLOCK) + tl.arange(0, BLOCK)
    b, c = a + BLOCK, a + 2 * BLOCK
    weights_a = _weights(norm_ptr, a, width, NORM_OUT)
    weights_b = _weights(norm_ptr, b, width, NORM_OUT)
    weights_c = _weights(norm_ptr, c, width, NORM_OUT)
    wait_for_previous(PDL)
    release_next(PDL)
    for behind in range(0, rows - first, tl.num_programs(0)):
        row = first + behind
        slot = row * tl.num_programs(1) + tile
        own_a, own_b, own_c = _own(partial_ptr + row.to(tl.int64) * width, a, b, c, width)
        tell(addresses_ptr, tl.load(epochs_ptr + slot) + 1, places, slot.to(tl.int64) * (NUM_WORDS * BLOCK),
             own_a, own_b, own_c, a < width, RANK, COUNT)  # fmt: skip
    for behind in range(0, rows - first, tl.num_programs(0)):
        row = first + behind
        slot = row * tl.num_programs(1) + tile
        at = slot.to(tl.int64) * (NUM_WORDS * BLOCK)
        epoch = tl.load(epochs_ptr + slot) + 1
        own_a, own_b, own_c = _own(partial_ptr + row.to(tl.int64) * width, a, b, c, width)
        residual = residual_ptr + row.to(tl.int64) * residual_stride
        scaled = scaled_ptr + row.to(tl.int64) * scaled_stride
        total_a = tl.load(residual + a, mask=a < width, other=0.0).to(tl.float32)
        total_b = tl.load(residual + b, mask=b < width, other=0.0).to(tl.float32)
        total_c = tl.load(residual + c, mask=c < width, other=0.0).to(tl.float32)
        for r in tl.static_range(COUNT):
            if r == RANK:
                its_a, its_b, its_c = own_a, own_b, own_c
            else:
                its_a, its_b, its_c = hear(addresses_ptr, epoch, places, at, a < width, r, own_a.dtype, RANK, COUNT)
            total_a += its_a.to(tl.float32)
            total_b += its_b.to(tl.float32)
            total_c += its_c.to(tl.float32)
        tl.store(epochs_ptr + slot, epoch)
        squares = _edges(total_a, residual + a, weights_a, scaled + a, a < width, NORM_OUT)
        squares += _edges(total_b, residual + b, weights_b, scaled + b, b < width, NORM_OUT)
        squares += _edges(total_c, residual + c, weights_c, scaled + c, c < width, NORM_OUT)
        if NORM_OUT:
            tl.store(squares_ptr + tile * squares_stride + row, tl.sum(squares))


def num_tiles(width: int) -> int:
    """Tiles of a row, each with its own sum of squares."""
    return -(-width // (3 * BLOCK))


def places_of(rows: int, width: int, itemsize: int) -> int:
    """Words that a sum of such a size needs in a box."""
    return rows * num_tiles(width) * BLOCK * words_of(itemsize)


def rank_sum(
    box: Mailbox, partial: torch.Tensor, residual: torch.Tensor, norm_out: NormOut | None = None, *, pdl: bool = False
) -> None:
    """Add every rank's partial sums to `residual`; all ranks launch it alike.

    Args:
        box: with `places_of` such a sum or more; used for sums of this width and dtype alone.
        partial: `[rows, width]` of this rank, bf16 | fp16 | fp32, contiguous.
        residual: `[rows, width]` of the same dtype, the same on all ranks, last dimension contiguous.
        norm_out: `squares` has `num_tiles(width)` lines or more.

    Raises:
        ValueError: more values or programs than there is room for, or a shape does not fit.
    """
    rows, width = residual.shape
    expect_rows_contiguous("residual", residual)
    expect_shape("partial", partial, (rows, width))
    size = partial.element_size()
    tiles = num_tiles(width)
    if rows * tiles > box.slots or places_of(rows, width, size) > box.places:
        raise ValueError(f"partial: {rows} rows, there is room for {box.places // places_of(1, width, size)}")
    if norm_out is not None:
        expect_shape("norm_out.weight", norm_out.weight, (width,))
    grid = (max(min(rows, box.programs // tiles), 1), tiles)
    _rank_sum[grid](
        box.addresses, box.epochs, partial, residual, norm_out.weight if norm_out else residual,
        norm_out.scaled if norm_out else residual, norm_out.squares if norm_out else box.epochs, box.places, rows,
        width, residual.stride(0), norm_out.scaled.stride(0) if norm_out else 0,
        norm_out.squares.stride(0) if norm_out else 0, RANK=box.rank, COUNT=box.count, BLOCK=BLOCK,
        NUM_WORDS=words_of(size), NORM_OUT=norm_out is not None, num_warps=_WARPS, maxnreg=_registers(box.count),
        **dependent(pdl),
    )  # fmt: skip
