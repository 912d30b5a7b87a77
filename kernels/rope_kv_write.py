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
def _loaded(ptr, num_heads, norm_ptr, eps, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr,
            BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    """Return heads in float32, normed where asked: both halves of what is rotated `[BLOCK_H, BLOCK_R]`, and the
    rest."""
    h = tl.arange(0, BLOCK_H)[:, None]
    r = tl.arange(0, BLOCK_R)[None, :]
    s = 2 * HALF + tl.arange(0, BLOCK_S)[None, :]
    live = (h < num_heads) & (r < HALF)
    first = tl.load(ptr + h * HEAD_DIM + r, mask=live, other=0.0).to(tl.float32)
    second = tl.load(ptr + h * HEAD_DIM + HALF + r, mask=live, other=0.0).to(tl.float32)
    rest = tl.load(ptr + h * HEAD_DIM + s, mask=(h < num_heads) & (s < HEAD_DIM), other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
        squares += tl.sum(rest * rest, axis=1, keep_dims=True)
        inverse = tl.rsqrt(squares / HEAD_DIM + eps)
        first = first * inverse * tl.load(norm_ptr + r, mask=r < HALF, other=0.0).to(tl.float32)
        second = second * inverse * tl.load(norm_ptr + HALF + r, mask=r < HALF, other=0.0).to(tl.float32)
        rest = rest * inverse * tl.load(norm_ptr + s, mask=s < HEAD_DIM, other=0.0).to(tl.float32)
    return first, second, rest


@triton.jit
def _store(ptr, num_heads, first, second, rest, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr,
           BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr):  # fmt: skip
    """Write heads as `_loaded` returns them."""
    h = tl.arange(0, BLOCK_H)[:, None]
    r = tl.arange(0, BLOCK_R)[None, :]
    s = 2 * HALF + tl.arange(0, BLOCK_S)[None, :]
    live = (h < num_heads) & (r < HALF)
    dtype = ptr.dtype.element_ty
    tl.store(ptr + h * HEAD_DIM + r, first.to(dtype), mask=live)
    tl.store(ptr + h * HEAD_DIM + HALF + r, second.to(dtype), mask=live)
    if 2 * HALF < HEAD_DIM:
        tl.store(ptr + h * HEAD_DIM + s, rest.to(dtype), mask=(h < num_heads) & (s < HEAD_DIM))


@triton.jit
def _rope_kv_write(
    qkv_ptr, kv_ptr, slots_ptr, positions_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, eps, qkv_stride, slot_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_V: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid `(num_tokens,)`, the last token first, which L2 may still have; token and pool offsets are 64-bit."""
    token = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64)
    r = tl.arange(0, BLOCK_R)[None, :]
    position = tl.load(positions_ptr + token).to(tl.int64)
    home = kv_ptr + tl.load(slots_ptr + token).to(tl.int64) * slot_stride
    cos = tl.load(cos_ptr + position * HALF + r, mask=r < HALF, other=0.0)
    sin = tl.load(sin_ptr + position * HALF + r, mask=r < HALF, other=0.0)
    wait_for_previous(PDL)
    release_next(PDL)
    q_ptr = qkv_ptr + token * qkv_stride
    k_ptr = q_ptr + HEADS * HEAD_DIM
    v_ptr = k_ptr + KV_HEADS * HEAD_DIM
    q1, q2, q3 = _loaded(q_ptr, HEADS, q_norm_ptr, eps, HEAD_DIM, HALF, BLOCK_Q, BLOCK_R, BLOCK_S, NORM)
    k1, k2, k3 = _loaded(k_ptr, KV_HEADS, k_norm_ptr, eps, HEAD_DIM, HALF, BLOCK_K, BLOCK_R, BLOCK_S, NORM)
    i = tl.arange(0, BLOCK_V)
    inside = i < KV_HEADS * HEAD_DIM
    v = tl.load(v_ptr + i, mask=inside)
    tl.debug_barrier()  # whoever holds what twice writes it twice: all reads come before the first write
    _store(q_ptr, HEADS, q1 * cos - q2 * sin, q2 * cos + q1 * sin, q3, HEAD_DIM, HALF, BLOCK_Q, BLOCK_R, BLOCK_S)
    first = k1 * cos - k2 * sin
    second = k2 * cos + k1 * sin
    _store(k_ptr, KV_HEADS, first, second, k3, HEAD_DIM, HALF, BLOCK_K, BLOCK_R, BLOCK_S)
    _store(home, KV_HEADS, first, second, k3, HEAD_DIM, HALF, BLOCK_K, BLOCK_R, BLOCK_S)
    tl.store(home + KV_HEADS * HEAD_DIM + i, v, mask=inside)


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
    half = rope.cos.shape[1]
    _rope_kv_write[(num_tokens,)](
        qkv, kv, slots, positions, rope.cos, rope.sin, rope.q_norm if rope.q_norm is not None else qkv,
        rope.k_norm if rope.k_norm is not None else qkv, rope.eps, qkv.stride(0), kv.stride(0),
        HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, HEAD_DIM=heads.head_dim, HALF=half,
        BLOCK_Q=next_power_of_2(heads.num_heads), BLOCK_K=next_power_of_2(heads.num_kv_heads),
        BLOCK_R=next_power_of_2(half), BLOCK_S=next_power_of_2(heads.head_dim - 2 * half),
        BLOCK_V=next_power_of_2(heads.num_kv_heads * heads.head_dim), NORM=rope.q_norm is not None, num_warps=4,
        **dependent(pdl),
    )  # fmt: skip
