"""RMSNorm over rows, with the residual added first where there is one (Zhang and Sennrich, 2019, equation 4).

`residual += x` (where given; the sum of its parts where `x` has several), then
`out = residual / sqrt(mean(residual^2) + eps) * weight`, in float32 inside.
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


@triton.jit
def _rms_norm(x_ptr, residual_ptr, weight_ptr, out_ptr, width, part_stride, x_stride, residual_stride, out_stride, eps,
              PARTS: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Grid `(rows,)`: one program a row, the last first, which L2 may still have; row offsets are 64-bit."""
    row = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < width
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        x += tl.load(x_ptr + part * part_stride + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * residual_stride + cols, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * residual_stride + cols, rounded, mask=inside)
        x = rounded.to(tl.float32)
    release_next(PDL)
    scale = tl.rsqrt(tl.sum(x * x) / width + eps)
    tl.store(out_ptr + row * out_stride + cols, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Write the norm of `x` (of `residual + x`, which also replaces `residual`) into `out`.

    Args:
        x: `[rows, width]`, or `[parts, rows, width]` with a `residual`; may be `out`.
        out, residual: `[rows, width]`. All are bf16 | fp16 | fp32, last dimension contiguous.
        weight: `[width]`.

    Raises:
        ValueError: a shape does not fit.
    """
    rows, width = out.shape
    parts = x.shape[0] if x.dim() == 3 else 1
    expect_shape("weight", weight, (width,))
    expect_shape("x", x, (rows, width) if x.dim() == 2 else (parts, rows, width))
    for name, tensor in (("x", x), ("out", out)):
        expect_rows_contiguous(name, tensor)
    if residual is not None:
        expect_shape("residual", residual, (rows, width))
    if rows == 0:
        return
    block = next_power_of_2(width)
    _rms_norm[(rows,)](
        x, residual if residual is not None else x, weight, out, width, x.stride(0), x.stride(-2),
        residual.stride(0) if residual is not None else 0, out.stride(0), eps, PARTS=parts, BLOCK=block,
        HAS_RESIDUAL=residual is not None, num_warps=min(max(block // 512, 1), 16), **dependent(pdl),
    )  # fmt: skip
