"""The MLP's first product of many rows with its activation, on Hopper: `silu(x @ gate.T) * (x @ up.T)`.

A prefill of 8192 tokens through a layer of Llama-3.1-8B would write and read 470 MB between the product and the
activation. Here both halves of a tile stay in registers (Shazeer, 2020, SwiGLU, in the epilogue). One warp of a program
fetches tiles through the copy engine, two warpgroups multiply, each 64 rows on its own, so that one's activation runs
beside the other's products (as in CUTLASS' warp-specialized kernels). What lies outside a matrix is fetched as zeros
and not written.

Written in Gluon, which Triton's interpreter does not run: checked on a card, compiled everywhere.
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

from kernels.launch import expect_rows_contiguous, expect_shape

_ROWS = 64
"""Of a warpgroup's half of a tile: what one of its products takes."""
_COLS = 128
"""Of gate, and as many of up: 256 together, the widest product."""
_DEPTH = 64
"""Of a fetch: 128 bytes of a row, the widest pattern of shared memory."""
_LOADER_REGISTERS, _SECOND_REGISTERS = 24, 232


@dataclass(frozen=True, slots=True)
class GatedShape:
    """How the product is cut up. `group` tiles of rows go through all columns before the next rows, so that programs
    that run together share weights in L2; `stages` fetches of 48 KB are under way at once, 4 at most."""

    group: int = 16
    stages: int = 3


@gluon.jit
def _tile_at(tile, row_tiles, col_tiles, GROUP: gl.constexpr):
    """Row and column, in tiles."""
    in_group = GROUP * col_tiles
    first = tile // in_group * GROUP
    high = min(row_tiles - first, GROUP)
    return first + tile % high, tile % in_group // high


@gluon.jit
def _fetch(x_desc, w_desc, row_tiles, col_tiles, width, steps, ready, empty, x_bufs, w_bufs, GROUP: gl.constexpr,
           STAGES: gl.constexpr):  # fmt: skip
    """The loading warp."""
    ROWS: gl.constexpr = x_desc.block_type.shape[0]
    COLS: gl.constexpr = w_desc.block_type.shape[0]
    size: gl.constexpr = 2 * (x_desc.block_type.nbytes + w_desc.block_type.nbytes)
    i = 0
    for tile in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):
        row, col = _tile_at(tile, row_tiles, col_tiles, GROUP)
        for step in range(steps):
            at = i % STAGES
            mbarrier.wait(empty.index(at), i // STAGES & 1 ^ 1)
            bar, w = ready.index(at), w_bufs.index(at)
            mbarrier.expect(bar, size)
            depth = step * x_desc.block_type.shape[1]
            for half in gl.static_range(2):
                x = x_bufs.index(2 * at + half)
                tma.async_copy_global_to_shared(x_desc, [(2 * row + half) * ROWS, depth], bar, x)
                part = w.slice(half * COLS, COLS)
                tma.async_copy_global_to_shared(w_desc, [half * width + col * COLS, depth], bar, part)
            i += 1


@gluon.jit
def _products(x_bufs, w_bufs, ready, empty, i, steps, STAGES: gl.constexpr, HALF: gl.constexpr):
    """Gate and up of a tile's half, over fetches `i` to `i + steps`."""
    ROWS: gl.constexpr = x_bufs.shape[1]
    COLS: gl.constexpr = w_bufs.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, COLS, 16])
    both = gl.zeros((ROWS, COLS), gl.float32, layout)
    for step in range(steps):
        at = (i + step) % STAGES
        mbarrier.wait(ready.index(at), (i + step) // STAGES & 1)
        both = warpgroup_mma(x_bufs.index(2 * at + HALF), w_bufs.index(at).permute((1, 0)), both, is_async=True)
        both = warpgroup_mma_wait(1, deps=(both,))
        mbarrier.arrive(empty.index((i + step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    both = warpgroup_mma_wait(0, deps=(both,))
    mbarrier.arrive(empty.index((i + steps - 1) % STAGES), count=1)
    # columns that are half the width apart lie in the same thread, so this moves nothing
    return both.reshape([ROWS, 2, COLS // 2]).permute(0, 2, 1).split()


@gluon.jit
def _multiply(out_desc, row_tiles, col_tiles, steps, ready, empty, x_bufs, w_bufs, out_bufs, GROUP: gl.constexpr,
              STAGES: gl.constexpr, HALF: gl.constexpr):  # fmt: skip
    """The warpgroup of the upper or the lower half of a tile's rows."""
    out = out_bufs.index(HALF)
    i = 0
    for tile in range(gl.program_id(0), row_tiles * col_tiles, gl.num_programs(0)):
        row, col = _tile_at(tile, row_tiles, col_tiles, GROUP)
        gate, up = _products(x_bufs, w_bufs, ready, empty, i, steps, STAGES, HALF)
        tma.store_wait(0)
        out.store((gate / (1.0 + gl.exp(-gate)) * up).to(out_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [(2 * row + HALF) * out.shape[0], col * out.shape[1]], out)
        i += steps
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["row_tiles", "col_tiles", "width", "steps"])
def _gated_gemm(x_desc, w_desc, out_desc, row_tiles, col_tiles, width, steps, GROUP: gl.constexpr,
                STAGES: gl.constexpr, LOADER: gl.constexpr, SECOND: gl.constexpr):  # fmt: skip
    """Any grid: programs take every so many-th tile."""
    ROWS: gl.constexpr = x_desc.block_type.shape[0]
    COLS: gl.constexpr = w_desc.block_type.shape[0]
    DEPTH: gl.constexpr = x_desc.block_type.shape[1]
    UPPER: gl.constexpr = 0
    LOWER: gl.constexpr = 1
    x_bufs = gl.allocate_shared_memory(x_desc.dtype, [2 * STAGES, ROWS, DEPTH], x_desc.layout)
    w_bufs = gl.allocate_shared_memory(x_desc.dtype, [STAGES, 2 * COLS, DEPTH], w_desc.layout)
    out_bufs = gl.allocate_shared_memory(x_desc.dtype, [2, ROWS, COLS], out_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize([
        (_multiply, (out_desc, row_tiles, col_tiles, steps, ready, empty, x_bufs, w_bufs, out_bufs, GROUP, STAGES,
                     UPPER)),
        (_multiply, (out_desc, row_tiles, col_tiles, steps, ready, empty, x_bufs, w_bufs, out_bufs, GROUP, STAGES,
                     LOWER)),
        (_fetch, (x_desc, w_desc, row_tiles, col_tiles, width, steps, ready, empty, x_bufs, w_bufs, GROUP, STAGES)),
    ], [4, 1], [SECOND, LOADER])  # fmt: skip


def takes(w: torch.Tensor) -> bool:
    """Whether the copy engine takes rows of the weight `[2 * width, k]`, and of what it is multiplied with and makes:
    they start at multiples of 16 bytes."""
    return all(size * w.element_size() % 16 == 0 for size in (w.shape[0] // 2, w.shape[1]))


def gated_gemm(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, shape: GatedShape | None = None) -> None:
    """Write `silu(x @ gate.T) * (x @ up.T)` into `out`, rounded once.

    Args:
        x: `[rows, k]`, at least one row; bf16 | fp16.
        w: `[2 * width, k]`, gate rows first, that `takes` says yes to.
        out: `[rows, width]`, written.
        shape: how it is cut up; None for the default.

    Raises:
        ValueError: a shape does not fit.
    """
    rows, width = out.shape
    expect_shape("w", w, (2 * width, None))
    expect_shape("x", x, (rows, w.shape[1]))
    for name, tensor in (("x", x), ("w", w), ("out", out)):
        expect_rows_contiguous(name, tensor)
    cut = shape or GatedShape()
    row_tiles, col_tiles = triton.cdiv(rows, 2 * _ROWS), triton.cdiv(width, _COLS)
    _gated_gemm[(min(_programs(x.device), row_tiles * col_tiles),)](
        _tiles(x, _ROWS, _DEPTH), _tiles(w, _COLS, _DEPTH), _tiles(out, _ROWS, _COLS), row_tiles, col_tiles, width,
        triton.cdiv(w.shape[1], _DEPTH), GROUP=cut.group, STAGES=cut.stages, LOADER=_LOADER_REGISTERS,
        SECOND=_SECOND_REGISTERS, num_warps=4,
    )  # fmt: skip


def _tiles(matrix: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
    element = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[matrix.dtype]
    return TensorDescriptor.from_tensor(
        matrix, [rows, cols], gl.NVMMASharedLayout.get_default_for([rows, cols], element)
    )


def _programs(device: torch.device) -> int:
    """One a multiprocessor: that is what shared memory allows. Without a card it is compiled only, for any number."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
