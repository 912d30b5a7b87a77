"""The small-batch product with its weights already on their way when it may start: `skinny_gemm` for Hopper alone.

The same product and edges as `kernels.skinny_gemm`, written in Gluon, because the order of copies matters here and
Triton's pipeliner decides it alone. A ring of `stages` weight tiles is filled by the bulk copy engine *before* the
wait for the kernel in front: with dependent launch this program starts in that kernel's shadow, and the card's memory
stays busy over the boundary. Tokens, which the kernel in front may write, follow after the wait, on the same barriers.

Needs compute capability 9.0; there is no interpreter for Gluon, so on the CPU `skinny_gemm` stands for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.launch import dependent, expect_rows_contiguous, expect_shape
from kernels.ranks import Mailbox, box_addresses, hear_tile, pack_tile, tell_tile, unpack_tile
from kernels.skinny_gemm import NormIn, NormOut, SplitSpace, check_sum

_DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}


@dataclass(frozen=True, slots=True)
class StreamShape:
    """Weight rows, tokens and depth of a tile, programs a tile, tiles in the ring. Four warps."""

    block_n: int = 64
    block_b: int = 16
    block_k: int = 128
    split_k: int = 1
    stages: int = 4


@gluon.jit
def _fill_weights(w_desc, w_ring, barrier, stage, row, n, k, live, GATED: gl.constexpr):
    """Start the copy of one weight tile (gated: of its up rows too) into the ring."""
    if GATED:
        tma.async_copy_global_to_shared(w_desc, [row, k], barrier, w_ring.index(2 * stage), live)
        tma.async_copy_global_to_shared(w_desc, [n + row, k], barrier, w_ring.index(2 * stage + 1), live)
    else:
        tma.async_copy_global_to_shared(w_desc, [row, k], barrier, w_ring.index(stage), live)


@gluon.jit
def _streamed_gemm(  # noqa: C901, PLR0912, PLR0915 - a kernel is one function, its branches are constexpr
    w_desc, x_desc, out_ptr, bias_ptr, residual_ptr, squares_in_ptr, norm_ptr, scaled_ptr, squares_out_ptr,
    partial_ptr, arrived_ptr, addresses_ptr, epochs_ptr, places, num_rows, n, k, out_stride, residual_stride,
    scaled_stride, squares_in_stride, squares_out_stride, eps,
    BLOCK_N: gl.constexpr, BLOCK_B: gl.constexpr, BLOCK_K: gl.constexpr, SPLIT_K: gl.constexpr, STAGES: gl.constexpr,
    GATED: gl.constexpr, HAS_BIAS: gl.constexpr, HAS_RESIDUAL: gl.constexpr, NORM_IN: gl.constexpr,
    NORM_OUT: gl.constexpr, TILES: gl.constexpr, TILES_P2: gl.constexpr, RANK: gl.constexpr, COUNT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Grid `(cdiv(n, BLOCK_N), SPLIT_K, cdiv(num_rows, BLOCK_B))`. One barrier a stage counts both tiles' bytes."""
    # size: a kernel is one function; its phases share two dozen values in registers
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_B, 16])
    OUT: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])  # 16 bytes of a row of `out` a thread
    WORDS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, 4], [0, 1])  # of a thread's 8 values of a row
    PARTS: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
    DTYPE: gl.constexpr = w_desc.dtype
    W_TILES: gl.constexpr = 2 if GATED else 1
    BYTES: gl.constexpr = (W_TILES * BLOCK_N + BLOCK_B) * BLOCK_K * 2
    tile_n = gl.program_id(0)
    part = gl.program_id(1)
    tile_b = gl.program_id(2)
    row = tile_n * BLOCK_N
    total = gl.cdiv(k, BLOCK_K)
    share = gl.cdiv(total, SPLIT_K)
    first = part * share
    blocks = gl.minimum(share, total - first)

    w_ring = gl.allocate_shared_memory(DTYPE, [STAGES * W_TILES, BLOCK_N, BLOCK_K], w_desc.layout)
    x_ring = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_B, BLOCK_K], x_desc.layout)
    barriers = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(barriers.index(stage), count=1)
    fence_async_shared()
    for stage in gl.static_range(STAGES):
        live = stage < blocks
        mbarrier.expect(barriers.index(stage), BYTES, live)
        _fill_weights(w_desc, w_ring, barriers.index(stage), stage, row, n, (first + stage) * BLOCK_K, live, GATED)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for stage in gl.static_range(STAGES):
        tma.async_copy_global_to_shared(x_desc, [tile_b * BLOCK_B, (first + stage) * BLOCK_K], barriers.index(stage),
                                        x_ring.index(stage), stage < blocks)  # fmt: skip

    # What the edges need is asked for before the loop, to be there behind it.
    cols = row + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, OUT))
    rows = tile_b * BLOCK_B + gl.arange(0, BLOCK_B, layout=gl.SliceLayout(0, OUT))
    inside = (cols < n)[:, None] & (rows < num_rows)[None, :]
    rows64 = rows.to(gl.int64)[None, :]
    if NORM_IN:
        tiles = gl.arange(0, TILES_P2, layout=gl.SliceLayout(1, PARTS))
        owners = tile_b * BLOCK_B + gl.arange(0, BLOCK_B, layout=gl.SliceLayout(0, PARTS))
        held = (tiles < TILES)[:, None] & (owners < num_rows)[None, :]
        squares_in = gl.load(squares_in_ptr + tiles[:, None] * squares_in_stride + owners[None, :], held, other=0.0)
    if HAS_RESIDUAL:
        residual = gl.load(residual_ptr + rows64 * residual_stride + cols[:, None], inside, other=0.0)
    if NORM_OUT:
        norm_weight = gl.load(norm_ptr + cols, cols < n, other=0.0)
    tile = tile_b * gl.num_programs(0) + tile_n
    if COUNT > 1:
        addresses = box_addresses(addresses_ptr, COUNT)
        epoch = gl.load(epochs_ptr + tile) + 1
    if HAS_BIAS:
        bias = gl.load(bias_ptr + cols, cols < n, other=0.0)

    acc = gl.zeros([BLOCK_N, BLOCK_B], gl.float32, ACC)
    up = gl.zeros([BLOCK_N, BLOCK_B], gl.float32, ACC)
    for i in range(blocks):
        slot = i % STAGES
        barrier = barriers.index(slot)
        mbarrier.wait(barrier, (i // STAGES) & 1)
        x = x_ring.index(slot).permute((1, 0))
        if GATED:
            acc = warpgroup_mma(w_ring.index(2 * slot), x, acc, is_async=True)
            up = warpgroup_mma(w_ring.index(2 * slot + 1), x, up, is_async=True)
            acc, up = warpgroup_mma_wait(0, deps=(acc, up))
        else:
            acc = warpgroup_mma(w_ring.index(slot), x, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
        gl.thread_barrier()  # all warps have read the slot before it is filled again
        again = i + STAGES < blocks
        k_next = (first + i + STAGES) * BLOCK_K
        mbarrier.expect(barrier, BYTES, again)
        _fill_weights(w_desc, w_ring, barrier, slot, row, n, k_next, again, GATED)
        tma.async_copy_global_to_shared(x_desc, [tile_b * BLOCK_B, k_next], barrier, x_ring.index(slot), again)

    last = True
    if SPLIT_K > 1:
        inner = (gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, ACC))[:, None] * BLOCK_B
                 + gl.arange(0, BLOCK_B, layout=gl.SliceLayout(0, ACC))[None, :])  # fmt: skip
        home = partial_ptr + tile.to(gl.int64) * (SPLIT_K * BLOCK_N * BLOCK_B) + inner
        gl.store(home + part * (BLOCK_N * BLOCK_B), acc)
        gl.thread_barrier()  # every thread's part is written before one of them says so
        last = gl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1
        if last:
            acc = gl.load(home, cache_modifier=".cg")
            for other in gl.static_range(1, SPLIT_K):
                acc += gl.load(home + other * (BLOCK_N * BLOCK_B), cache_modifier=".cg")
            gl.store(arrived_ptr + tile, 0)

    if last:
        out = gl.convert_layout(acc, OUT)
        if NORM_IN:
            scale = gl.rsqrt(gl.sum(squares_in, axis=0) / k + eps)
            scale = gl.convert_layout(scale, gl.SliceLayout(0, OUT))[None, :]
            out = out * scale
            if GATED:
                other_half = gl.convert_layout(up, OUT) * scale
                out = out / (1.0 + gl.exp(-out)) * other_half
        elif GATED:
            out = out / (1.0 + gl.exp(-out)) * gl.convert_layout(up, OUT)
        if HAS_BIAS:
            out += bias.to(gl.float32)[:, None]
        if COUNT > 1:
            lines: gl.constexpr = BLOCK_N // 8
            own = out.to(DTYPE)
            column = tile.to(gl.int64) * BLOCK_B + gl.arange(0, BLOCK_B, layout=gl.SliceLayout(0, WORDS))
            line = gl.arange(0, lines, layout=gl.SliceLayout(1, WORDS))
            here = column[None, :] * (3 * lines) + line[:, None]
            a, b, c = pack_tile(own, epoch)
            tell_tile(addresses, epoch, places, here, gl.convert_layout(a, WORDS), gl.convert_layout(b, WORDS),
                      gl.convert_layout(c, WORDS), RANK, COUNT)  # fmt: skip
            out = residual.to(gl.float32)
            for r in gl.static_range(COUNT):
                its = own
                if r != RANK:
                    a, b, c = hear_tile(addresses, epoch, places, here, r, RANK, COUNT)
                    its = gl.convert_layout(unpack_tile(a, b, c, own.dtype), OUT)
                out += its.to(gl.float32)
            gl.store(epochs_ptr + tile, epoch)
        elif HAS_RESIDUAL:
            out += residual.to(gl.float32)
        rounded = out.to(DTYPE)
        gl.store(out_ptr + rows64 * out_stride + cols[:, None], rounded, inside)
        if NORM_OUT:
            value = gl.where(inside, rounded.to(gl.float32), 0.0)
            scaled = (value * norm_weight.to(gl.float32)[:, None]).to(DTYPE)
            gl.store(scaled_ptr + rows64 * scaled_stride + cols[:, None], scaled, inside)
            squares = gl.sum(value * value, axis=0)
            gl.store(squares_out_ptr + tile_n * squares_out_stride + rows, squares, rows < num_rows)


def streamed_gemm(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    shape: StreamShape,
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
    """Write `x @ w.T` with its edges into `out`: the arguments of `skinny_gemm.skinny_gemm`, bf16 | fp16.

    Raises:
        ValueError: a shape or dtype does not fit.
    """
    rows, k = x.shape
    n = w.shape[0] // 2 if gated else w.shape[0]
    expect_shape("w", w, (2 * n if gated else n, k))
    expect_shape("out", out, (rows, n))
    for name, tensor in (("x", x), ("w", w), ("out", out)):
        expect_rows_contiguous(name, tensor)
    if x.dtype not in _DTYPES or w.dtype != x.dtype:
        raise ValueError(f"x, w: expected bfloat16 or float16 of one kind, got {x.dtype} and {w.dtype}")
    if shape.split_k > 1 and (gated or split is None):
        raise ValueError("split_k > 1 needs `split` scratch and a product that is not gated")
    grid = (triton.cdiv(n, shape.block_n), shape.split_k, triton.cdiv(rows, shape.block_b))
    check_sum(over, grid, shape.block_n, shape.block_b, residual, n)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    w_desc = TensorDescriptor(w, list(w.shape), list(w.stride()), [shape.block_n, shape.block_k], layout)
    x_desc = TensorDescriptor(x, list(x.shape), list(x.stride()), [shape.block_b, shape.block_k], layout)
    squares_in = norm_in.squares if norm_in else out
    squares_out = norm_out.squares if norm_out else out
    tiles = norm_in.num_tiles if norm_in else 1
    _streamed_gemm[grid](
        w_desc, x_desc, out, bias if bias is not None else out, residual if residual is not None else out, squares_in,
        norm_out.weight if norm_out else out, norm_out.scaled if norm_out else out, squares_out,
        split.partial if split else out, split.arrived if split else out, over.addresses if over else out,
        over.epochs if over else out, over.places if over else 0, rows, n, k, out.stride(0),
        residual.stride(0) if residual is not None else 0, norm_out.scaled.stride(0) if norm_out else 0,
        squares_in.stride(0), squares_out.stride(0), norm_in.eps if norm_in else 0.0,
        BLOCK_N=shape.block_n, BLOCK_B=shape.block_b, BLOCK_K=shape.block_k, SPLIT_K=shape.split_k,
        STAGES=shape.stages, GATED=gated, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        NORM_IN=norm_in is not None, NORM_OUT=norm_out is not None, TILES=tiles,
        TILES_P2=triton.next_power_of_2(tiles), RANK=over.rank if over else 0, COUNT=over.count if over else 1,
        num_warps=4, **dependent(pdl),
    )  # fmt: skip
