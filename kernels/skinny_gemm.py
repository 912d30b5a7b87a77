"""A matrix product for few rows: decode's projections, bound by reading the weights once.

`out[b, n] = sum_k x[b, k] * w[n, k]`, with what stands around it in a decoder layer folded into its edges:

* `norm_in`: the rows of `x` come already multiplied by the norm's weight, but not divided by their root mean square;
  the product is scaled instead, from the partial sums of squares that the producer of `x` left (one a tile and row).
* `gated`: `w` holds gate rows, then up rows; `out = silu(gate) * up`, two accumulators in one program.
* `residual`: `out = residual + product`, rounded to the dtype of `out`.
* `over`: the product is one rank's part of a sum. Who has a tile sends it to the other ranks and waits for theirs; all
  are added to the residual in the order of ranks, so that all ranks have the same bits.
* `norm_out`: beside `out`, `scaled = out * next_norm_weight` and this tile's sums of squares, for the next product.

The weights take the rows of the tensor cores' tile and the tokens its columns ("swap AB"), so that 16 tokens cost 16
columns instead of being padded to 64 rows. With `split_k` > 1 several programs share a tile; the last one to finish
adds their partial sums in a fixed order, so results do not depend on timing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import (
    dependent,
    dot,
    expect_rows_contiguous,
    expect_shape,
    release_next,
    wait_for_previous,
)
from kernels.ranks import Mailbox, box_addresses, hear_tile, pack_tile, tell_tile, tile_words, unpack_tile


@dataclass(frozen=True, slots=True)
class GemmShape:
    """How one product is cut up: tile sizes, programs a tile (`split_k`), loads in flight (`stages`), warps."""

    block_n: int = 64
    block_b: int = 16
    block_k: int = 128
    split_k: int = 1
    stages: int = 4
    warps: int = 4


@dataclass(frozen=True, slots=True)
class NormIn:
    """Sums of squares of the rows of `x`: `squares[tile, row]` float32, of `num_tiles` tiles."""

    squares: torch.Tensor
    num_tiles: int
    eps: float


@dataclass(frozen=True, slots=True)
class NormOut:
    """Where a product leaves what the next norm needs.

    `weight [n]`; `scaled [rows, n]` is written; `squares [cdiv(n, block_n), rows]` float32 is written.
    """

    weight: torch.Tensor
    scaled: torch.Tensor
    squares: torch.Tensor


@dataclass(frozen=True, slots=True)
class SplitSpace:
    """Scratch of split products: `partial` float32 (any shape), `arrived` int32, zero before and after each launch."""

    partial: torch.Tensor
    arrived: torch.Tensor


@triton.jit
def _weights(w_ptr, rows, k, start, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr):
    """Return a tile `[BLOCK_N, BLOCK_K]` of weight rows; past the end of a row it is zero."""
    ks = start + tl.arange(0, BLOCK_K)
    pointers = w_ptr + rows.to(tl.int64)[:, None] * k + ks[None, :]
    if EVEN_K:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        tile = tl.load(pointers, mask=(ks < k)[None, :], other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def _product(x_ptr, w_ptr, rows_n, n, rows_b, num_rows, k, k_first, k_last, x_stride,
             BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
             EVEN_K: tl.constexpr, PRECISION: tl.constexpr, GATED: tl.constexpr):  # fmt: skip
    """Return the float32 tile `[BLOCK_N, BLOCK_B]` of `w @ x.T` over `k_first .. k_last`; gated, that of the up rows
    too, which lie `n` rows further down (without: zeros)."""
    x_rows = x_ptr + rows_b.to(tl.int64)[None, :] * x_stride
    live = (rows_b < num_rows)[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    up = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    for start in tl.range(k_first, k_last, BLOCK_K, num_stages=STAGES):
        ks = (start + tl.arange(0, BLOCK_K))[:, None]
        x = tl.load(x_rows + ks, mask=live if EVEN_K else live & (ks < k), other=0.0)
        acc = dot(_weights(w_ptr, rows_n, k, start, BLOCK_K, EVEN_K), x, acc, PRECISION)
        if GATED:
            up = dot(_weights(w_ptr, n + rows_n, k, start, BLOCK_K, EVEN_K), x, up, PRECISION)
    return acc, up


@triton.jit
def _skinny_gemm(  # noqa: C901, PLR0912, PLR0915 - a kernel is one function, its branches are constexpr
    x_ptr, w_ptr, out_ptr, bias_ptr, residual_ptr, squares_in_ptr, norm_ptr, scaled_ptr, squares_out_ptr,
    partial_ptr, arrived_ptr, addresses_ptr, epochs_ptr, places, num_rows, n, k, x_stride, out_stride, residual_stride,
    scaled_stride, squares_in_stride, squares_out_stride, eps,
    BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
    GATED: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, NORM_IN: tl.constexpr,
    NORM_OUT: tl.constexpr, TILES: tl.constexpr, TILES_P2: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, RANK: tl.constexpr, COUNT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid `(cdiv(n, BLOCK_N), SPLIT_K, cdiv(num_rows, BLOCK_B))`; weight offsets are 64-bit (a head has > 2^31)."""
    # size: a kernel is one function; its phases share two dozen values in registers
    tile_n = tl.program_id(0)
    part = tl.program_id(1)
    tile_b = tl.program_id(2)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rows_n = tl.minimum(cols, n - 1)
    rows_b = tile_b * BLOCK_B + tl.arange(0, BLOCK_B)
    k_part = tl.cdiv(tl.cdiv(k, BLOCK_K), SPLIT_K) * BLOCK_K
    k_first = part * k_part
    k_last = tl.minimum(k_first + k_part, k)
    wait_for_previous(PDL)
    release_next(PDL)
    # What the edges need is asked for before the loop, to be there behind it.
    inside = (rows_b < num_rows)[:, None] & (cols < n)[None, :]
    rows64 = rows_b.to(tl.int64)[:, None]
    if NORM_IN:
        tiles = tl.arange(0, TILES_P2)
        parts = (tiles < TILES)[:, None] & (rows_b < num_rows)[None, :]
        squares_in = tl.load(squares_in_ptr + tiles[:, None] * squares_in_stride + rows_b[None, :], parts, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + rows64 * residual_stride + cols[None, :], mask=inside, other=0.0)
    if NORM_OUT:
        norm_weight = tl.load(norm_ptr + rows_n)
    tile = tile_b * tl.num_programs(0) + tile_n
    if COUNT > 1:
        addresses = box_addresses(addresses_ptr, COUNT)
        epoch = tl.load(epochs_ptr + tile) + 1
    acc, up = _product(x_ptr, w_ptr, rows_n, n, rows_b, num_rows, k, k_first, k_last, x_stride,
                       BLOCK_N, BLOCK_B, BLOCK_K, STAGES, EVEN_K, PRECISION, GATED)  # fmt: skip

    last = True
    if SPLIT_K > 1:
        inner = tl.arange(0, BLOCK_N)[:, None] * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
        home = partial_ptr + tile.to(tl.int64) * (SPLIT_K * BLOCK_N * BLOCK_B) + inner
        tl.store(home + part * (BLOCK_N * BLOCK_B), acc)
        tl.debug_barrier()  # every thread's part is written before one of them says so
        last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1
        if last:
            acc = tl.load(home, cache_modifier=".cg")
            for other in tl.static_range(1, SPLIT_K):
                acc += tl.load(home + other * (BLOCK_N * BLOCK_B), cache_modifier=".cg")
            tl.store(arrived_ptr + tile, 0)

    if last:
        if NORM_IN:
            scale = tl.rsqrt(tl.sum(squares_in, axis=0) / k + eps)
            acc = acc * scale[None, :]
            if GATED:
                up = up * scale[None, :]
        if GATED:
            acc = acc * tl.sigmoid(acc) * up
        out = tl.trans(acc)
        if HAS_BIAS:
            out += tl.load(bias_ptr + rows_n).to(tl.float32)[None, :]
        if COUNT > 1:
            lines: tl.constexpr = BLOCK_N // 8
            own = tl.trans(out).to(out_ptr.dtype.element_ty)
            column = tile.to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
            here = column[None, :] * (3 * lines) + tl.arange(0, lines)[:, None]
            a, b, c = pack_tile(own, epoch)
            tell_tile(addresses, epoch, places, here, a, b, c, RANK, COUNT)
            out = residual.to(tl.float32)
            for r in tl.static_range(COUNT):
                its = own
                if r != RANK:
                    a, b, c = hear_tile(addresses, epoch, places, here, r, RANK, COUNT)
                    its = unpack_tile(a, b, c, own.dtype)
                out += tl.trans(its).to(tl.float32)
            tl.store(epochs_ptr + tile, epoch)
        elif HAS_RESIDUAL:
            out += residual.to(tl.float32)
        rounded = out.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + rows64 * out_stride + cols[None, :], rounded, mask=inside)
        if NORM_OUT:
            value = tl.where(inside, rounded.to(tl.float32), 0.0)
            scaled = (value * norm_weight.to(tl.float32)[None, :]).to(scaled_ptr.dtype.element_ty)
            tl.store(scaled_ptr + rows64 * scaled_stride + cols[None, :], scaled, mask=inside)
            squares = tl.sum(value * value, axis=1)
            tl.store(squares_out_ptr + tile_n * squares_out_stride + rows_b, squares, mask=rows_b < num_rows)


def skinny_gemm(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    shape: GemmShape,
    *,
    gated: bool = False,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    norm_in: NormIn | None = None,
    norm_out: NormOut | None = None,
    split: SplitSpace | None = None,
    over: Mailbox | None = None,
    pdl: bool = False,
) -> None:
    """Write `x @ w.T` with its edges into `out`.

    Args:
        x: `[rows, k]`, bf16 | fp16 | fp32, last dimension contiguous.
        w: `[n, k]` contiguous; with `gated` `[2 * n, k]`, gate rows first.
        out: `[rows, n]`, written; may be `residual` itself.
        shape: tile sizes; `split_k` > 1 needs `split` and excludes `gated`.
        over: adds the products of all ranks to the residual, each rounded to the dtype of `out`; needs `residual`,
            2-byte values and whole tiles, and all ranks launch it alike. A box of `slots * tile_words` places, used for
            products of this width and these tiles alone.

    Raises:
        ValueError: a shape does not fit, or `split` or `over` is missing or too small.
    """
    rows, k = x.shape
    n = w.shape[0] // 2 if gated else w.shape[0]
    expect_shape("w", w, (2 * n if gated else n, k))
    expect_shape("out", out, (rows, n))
    for name, tensor in (("x", x), ("w", w), ("out", out)):
        expect_rows_contiguous(name, tensor)
    grid = (triton.cdiv(n, shape.block_n), shape.split_k, triton.cdiv(rows, shape.block_b))
    _check_split(shape, grid, split, gated)
    check_sum(over, grid, shape.block_n, shape.block_b, residual, n)
    squares_in = norm_in.squares if norm_in else x
    squares_out = norm_out.squares if norm_out else x
    if norm_out is not None:
        expect_shape("norm_out.squares", squares_out, (None, None))
    tiles = norm_in.num_tiles if norm_in else 1
    _skinny_gemm[grid](
        x, w, out, bias if bias is not None else x, residual if residual is not None else x, squares_in,
        norm_out.weight if norm_out else x, norm_out.scaled if norm_out else x, squares_out,
        split.partial if split else x, split.arrived if split else x, over.addresses if over else x,
        over.epochs if over else x, over.places if over else 0, rows, n, k, x.stride(0), out.stride(0),
        residual.stride(0) if residual is not None else 0,
        norm_out.scaled.stride(0) if norm_out else 0, squares_in.stride(0), squares_out.stride(0),
        norm_in.eps if norm_in else 0.0,
        BLOCK_N=shape.block_n, BLOCK_B=shape.block_b, BLOCK_K=shape.block_k, SPLIT_K=shape.split_k,
        STAGES=shape.stages, GATED=gated, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        NORM_IN=norm_in is not None, NORM_OUT=norm_out is not None, TILES=tiles,
        TILES_P2=triton.next_power_of_2(tiles), EVEN_K=k % shape.block_k == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        RANK=over.rank if over else 0, COUNT=over.count if over else 1, num_warps=shape.warps, **dependent(pdl),
    )  # fmt: skip


def check_sum(
    over: Mailbox | None, grid: tuple[int, int, int], block_n: int, block_b: int, residual: torch.Tensor | None, n: int
) -> None:
    """Raise ValueError where the products of all ranks cannot be added up by programs of such a grid."""
    if over is None:
        return
    if residual is None or residual.element_size() != 2 or n % block_n or block_n % 8:
        raise ValueError(f"over: needs a residual of 2-byte values and whole tiles of {block_n} outputs, got {n}")
    tiles, programs = grid[0] * grid[2], grid[0] * grid[1] * grid[2]
    if tiles > over.slots or over.places != over.slots * tile_words(block_n, block_b):
        raise ValueError(f"over: {tiles} tiles of {block_n} x {block_b}, there is room for others")
    if programs > over.programs:
        raise ValueError(f"over: {programs} programs that wait for each other, {over.programs} run at once")


def _check_split(shape: GemmShape, grid: tuple[int, int, int], split: SplitSpace | None, gated: bool) -> None:
    if shape.split_k == 1:
        return
    if gated or split is None:
        raise ValueError("split_k > 1 needs `split` scratch and a product that is not gated")
    tiles = grid[0] * grid[2]
    needed = tiles * shape.split_k * shape.block_n * shape.block_b
    if split.partial.numel() < needed or split.arrived.numel() < tiles:
        raise ValueError(
            f"split: expected at least {needed} floats and {tiles} counters, "
            f"got {split.partial.numel()} and {split.arrived.numel()}"
        )
