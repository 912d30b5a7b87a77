"""Rotary position embedding on fused q, k, v rows, and their K and V into the pool.

`x' = x * cos + rotate_half(x) * sin` (Su et al., 2021, in the half-split order of GPT-NeoX), after a per-head RMSNorm
where the model has one. Q and K are rotated in place, so that a whole prompt can be attended to straight from `qkv`.
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
from kernels.layout import Heads, Rope


@triton.jit
def _rope_kv_write(
    qkv_ptr, kv_ptr, slots_ptr, positions_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, eps, qkv_stride, slot_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, QK_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid `(num_tokens,)`: q and k heads are one block of rows; token and pool offsets are 64-bit."""
    half: tl.constexpr = ROTARY_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    live = (h < HEADS + KV_HEADS) & (d < HEAD_DIM)
    position = tl.load(positions_ptr + token).to(tl.int64)
    home = kv_ptr + tl.load(slots_ptr + token).to(tl.int64) * slot_stride
    partner = tl.where(d < half, d + half, tl.where(d < ROTARY_DIM, d - half, d))
    sign = tl.where(d < half, -1.0, 1.0)
    angle = position * half + tl.where(d < half, d, d - half)
    cos = tl.load(cos_ptr + angle, mask=d < ROTARY_DIM, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=d < ROTARY_DIM, other=0.0) * sign
    wait_for_previous(PDL)
    row = qkv_ptr + token * qkv_stride
    x = tl.load(row + h * HEAD_DIM + d, mask=live, other=0.0).to(tl.float32)
    y = tl.load(row + h * HEAD_DIM + partner, mask=live, other=0.0).to(tl.float32)
    if QK_NORM:
        inverse = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / HEAD_DIM + eps)
        is_q = h < HEADS
        wx = tl.where(is_q, tl.load(q_norm_ptr + d, mask=d < HEAD_DIM), tl.load(k_norm_ptr + d, mask=d < HEAD_DIM))
        wy = tl.where(is_q, tl.load(q_norm_ptr + partner, mask=d < HEAD_DIM),
                      tl.load(k_norm_ptr + partner, mask=d < HEAD_DIM))  # fmt: skip
        x = x * inverse * wx.to(tl.float32)
        y = y * inverse * wy.to(tl.float32)
    release_next(PDL)
    tl.debug_barrier()  # partners are read by other threads: all reads come before the first write
    rotated = (x * cos + y * sin).to(qkv_ptr.dtype.element_ty)
    tl.store(row + h * HEAD_DIM + d, rotated, mask=live)
    is_k = live & (h >= HEADS)
    tl.store(home + (h - HEADS) * HEAD_DIM + d, rotated, mask=is_k)
    v = tl.load(row + (h + KV_HEADS) * HEAD_DIM + d, mask=is_k, other=0.0)
    tl.store(home + (h - HEADS + KV_HEADS) * HEAD_DIM + d, v, mask=is_k)


def rope_kv_write(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    rope: Rope,
    heads: Heads,
    *,
    pdl: bool = False,
) -> None:
    """Rotate q and k of `qkv` in place and write k and v to the tokens' slots.

    Args:
        qkv: `[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]`, bf16 | fp16 | fp32.
        kv: one layer of the pool, `[num_slots + 1, 2 * num_kv_heads, head_dim]`, K heads first.
        slots: `[num_tokens]` int32 | int64; padding tokens name the padding slot.
        positions: `[num_tokens]` int32 | int64, each < `rope.cos.shape[0]`.

    Raises:
        ValueError: a shape does not fit.
    """
    num_tokens = qkv.shape[0]
    expect_shape("qkv", qkv, (num_tokens, heads.qkv_width))
    expect_shape("kv", kv, (None, 2 * heads.num_kv_heads, heads.head_dim))
    expect_shape("slots", slots, (num_tokens,))
    expect_shape("positions", positions, (num_tokens,))
    for name, tensor in (("qkv", qkv), ("kv", kv)):
        expect_rows_contiguous(name, tensor)
    if num_tokens == 0:
        return
    _rope_kv_write[(num_tokens,)](
        qkv, kv, slots, positions, rope.cos, rope.sin, rope.q_norm if rope.q_norm is not None else qkv,
        rope.k_norm if rope.k_norm is not None else qkv, rope.eps, qkv.stride(0), kv.stride(0),
        HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, HEAD_DIM=heads.head_dim, ROTARY_DIM=2 * rope.cos.shape[1],
        BLOCK_H=next_power_of_2(heads.num_heads + heads.num_kv_heads), BLOCK_D=next_power_of_2(heads.head_dim),
        QK_NORM=rope.q_norm is not None, num_warps=8, **dependent(pdl),
    )  # fmt: skip
