"""The gated activation: `out = silu(gate) * up`, where a row holds `gate`, then `up` (Shazeer, 2020, SwiGLU)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_rows_contiguous, expect_shape, release_next, wait_for_previous


@triton.jit
def _swiglu(gate_up_ptr, out_ptr, width, blocks, in_stride, out_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Grid `(rows * blocks,)`, the last row first: it was written last, and L2 may have it. Row offsets are 64-bit."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // blocks).to(tl.int64)
    cols = program % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = cols < width
    wait_for_previous(PDL)
    gate = tl.load(gate_up_ptr + row * in_stride + cols, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * in_stride + width + cols, mask=inside, other=0.0).to(tl.float32)
    release_next(PDL)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * out_stride + cols, out.to(out_ptr.dtype.element_ty), mask=inside)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """Write `silu(gate) * up` into `out`.

    Args:
        gate_up: `[rows, 2 * width]`, gate columns first; bf16 | fp16 | fp32, last dimension contiguous.
        out: `[rows, width]`, written.

    Raises:
        ValueError: a shape does not fit.
    """
    rows, width = out.shape
    expect_shape("gate_up", gate_up, (rows, 2 * width))
    for name, tensor in (("gate_up", gate_up), ("out", out)):
        expect_rows_contiguous(name, tensor)
    if rows == 0:
        return
    block = 2048
    blocks = triton.cdiv(width, block)
    _swiglu[(rows * blocks,)](
        gate_up, out, width, blocks, gate_up.stride(0), out.stride(0), BLOCK=block, num_warps=4, **dependent(pdl)
    )
