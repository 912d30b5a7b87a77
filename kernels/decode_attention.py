"""Decode attention over the slot table: one new token a request, its context read once.

For each request and KV head, with `q` and the newest `k` rotated here (and normed first where the model does so):
`out = softmax(scale * q K^T) V` over the tokens in the slots that the table names, and the newest token, whose K and V
come from `qkv` and are written to their slot on the way. One program serves all query heads of a KV head, so each K
and V row is read once. Its loop has three phases: slot ids of block i + 1, K and V rows of block i, two products, in
which tokens take the rows of the tensor cores' tile and heads its columns.

A program runs one item of the work list (`decode_plan`). Where a request has several, each leaves its unnormalised
sum, maximum and denominator in scratch, and the one that finishes last merges them (Flash-Decoding, split-KV).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.decode_plan import ITEM_FIELDS, DecodePlan
from kernels.launch import (
    LOG2_E,
    MIN_BLOCK_D,
    dependent,
    dot,
    expect_rows_contiguous,
    expect_shape,
    next_power_of_2,
    release_next,
    wait_for_previous,
)
from kernels.layout import Heads, Rope, SlotTable

_NO_TOKEN = tl.constexpr(1.0e30)
"""A maximum that no score reaches: beside it every token's weight is 0."""


@dataclass(frozen=True, slots=True)
class DecodeScratch:
    """Partial results, float32, and how many splits of a request have arrived, int32.

    sums `[max_items, num_kv_heads, group_p2, head_dim_p2]`, stats `[max_items, num_kv_heads, 2, group_p2]`,
    arrived `[rows, num_kv_heads]`, zero between launches.
    """

    sums: torch.Tensor
    stats: torch.Tensor
    arrived: torch.Tensor

    @staticmethod
    def allocate(plan: DecodePlan, heads: Heads) -> DecodeScratch:
        """Return scratch for every work list of `plan`."""
        items, rows = plan.items.shape[0], plan.max_rows
        group, dim = next_power_of_2(heads.group), max(next_power_of_2(heads.head_dim), MIN_BLOCK_D)
        device = plan.items.device
        return DecodeScratch(
            torch.empty(items, heads.num_kv_heads, group, dim, device=device),
            torch.empty(items, heads.num_kv_heads, 2, group, device=device),
            torch.zeros(rows, heads.num_kv_heads, dtype=torch.int32, device=device),
        )


@dataclass(frozen=True, slots=True)
class AttentionTuning:
    """Loads in flight (`stages`), warps and splits merged at once, as far as registers hold them."""

    stages: int = 3
    warps: int = 4
    merge: int = 8


@triton.jit
def _rotated(ptr, row_offsets, d, live, cos, sin, norm_ptr, eps, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
             NORM: tl.constexpr):  # fmt: skip
    """Return head rows `[.., BLOCK_D]` in float32: normed where asked, then rotated by halves (NeoX order)."""
    half: tl.constexpr = ROTARY_DIM // 2
    partner = tl.where(d < half, d + half, tl.where(d < ROTARY_DIM, d - half, d))
    sign = tl.where(d < half, -1.0, tl.where(d < ROTARY_DIM, 1.0, 0.0))
    x = tl.load(ptr + row_offsets + d, mask=live, other=0.0).to(tl.float32)
    y = tl.load(ptr + row_offsets + partner, mask=live, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / HEAD_DIM + eps)
        x = x * inverse * tl.load(norm_ptr + d, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
        y = y * inverse * tl.load(norm_ptr + partner, mask=d < HEAD_DIM, other=0.0).to(tl.float32)
    return x * cos + y * sign * sin


@triton.jit
def _merge(sums_ptr, stats_ptr, first, splits, head, heads, GROUP_P2: tl.constexpr, BLOCK_D: tl.constexpr,
           MERGE: tl.constexpr):  # fmt: skip
    """Return the attention output `[GROUP_P2, BLOCK_D]` of one request and KV head from its splits' partial results."""
    g = tl.arange(0, GROUP_P2)
    d = tl.arange(0, BLOCK_D)
    top = tl.full([GROUP_P2], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_P2], tl.float32)
    acc = tl.zeros([GROUP_P2, BLOCK_D], tl.float32)
    for start in range(0, splits, MERGE):
        s = start + tl.arange(0, MERGE)
        live = s < splits
        home = (first + s).to(tl.int64) * heads + head
        stats = stats_ptr + home[:, None] * (2 * GROUP_P2) + g[None, :]
        tops = tl.load(stats, mask=live[:, None], other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(stats + GROUP_P2, mask=live[:, None], other=0.0, cache_modifier=".cg")
        offsets = home[:, None, None] * (GROUP_P2 * BLOCK_D) + g[None, :, None] * BLOCK_D + d[None, None, :]
        sums = tl.load(sums_ptr + offsets, mask=live[:, None, None], other=0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(tops, axis=0))
        weights = tl.exp2(tops - new_top[None, :])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(weights * totals, axis=0)
        acc = acc * decay[:, None] + tl.sum(sums * weights[:, :, None], axis=0)
        top = new_top
    return acc / total[:, None]


@triton.jit
def _decode_attention(  # noqa: PLR0915 - a kernel is one function
    qkv_ptr, kv_ptr, table_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, items_ptr, num_items_ptr, sums_ptr,
    stats_ptr, arrived_ptr, out_ptr, scale, eps, table_stride, padding_slot, qkv_stride, out_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_P2: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_TOKENS: tl.constexpr, STAGES: tl.constexpr,
    MERGE: tl.constexpr, SLOT_STRIDE: tl.constexpr, FIELDS: tl.constexpr, QK_NORM: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid `(KV_HEADS, max_items)`. `scale` holds log2(e), so that exp2 does. Pool offsets are 64-bit."""
    # size: a kernel is one function; its phases share two dozen values in registers
    # A tile needs 8 columns, but 16 rows: heads, which are few, take the columns.
    COLUMNS: tl.constexpr = max(GROUP_P2, 8)
    head = tl.program_id(0)
    item = tl.program_id(1)
    item_ptr = items_ptr + item * FIELDS
    row = tl.load(item_ptr)
    first_block = tl.load(item_ptr + 1)
    num_blocks = tl.load(item_ptr + 2)
    first_item = tl.load(item_ptr + 3)
    splits = tl.load(item_ptr + 4)
    old_tokens = tl.load(item_ptr + 5)
    table_row = tl.load(item_ptr + 6)
    if item >= tl.load(num_items_ptr):
        wait_for_previous(PDL)
        return
    slots_ptr = table_ptr + table_row.to(tl.int64) * table_stride
    t = tl.arange(0, BLOCK_TOKENS)
    d = tl.arange(0, BLOCK_D)[None, :]
    start = first_block * BLOCK_TOKENS
    has_newest = start + num_blocks * BLOCK_TOKENS >= old_tokens
    k_ptr = kv_ptr + head * HEAD_DIM
    slots = tl.load(slots_ptr + start + t, mask=start + t < old_tokens, other=padding_slot)
    home = k_ptr + tl.load(slots_ptr + old_tokens).to(tl.int64) * SLOT_STRIDE
    half: tl.constexpr = ROTARY_DIM // 2
    angle = old_tokens.to(tl.int64) * half + tl.where(d < half, d, d - half)
    cos = tl.load(cos_ptr + angle, mask=d < ROTARY_DIM, other=1.0)
    sin = tl.load(sin_ptr + angle, mask=d < ROTARY_DIM, other=0.0)
    wait_for_previous(PDL)
    release_next(PDL)

    # The newest token's q, k and v are asked for together, whoever needs k and v: one trip to memory, not three.
    in_head = d < HEAD_DIM
    g = tl.arange(0, COLUMNS)
    is_head = g < GROUP
    token_ptr = qkv_ptr + row.to(tl.int64) * qkv_stride
    one = tl.zeros([1], tl.int32)
    k_offset = ((KV_HEADS * GROUP + head + one) * HEAD_DIM)[:, None]
    q = _rotated(token_ptr, ((head * GROUP + g) * HEAD_DIM)[:, None], d, in_head & is_head[:, None], cos, sin,
                 q_norm_ptr, eps, HEAD_DIM, ROTARY_DIM, QK_NORM).to(kv_ptr.dtype.element_ty)  # fmt: skip
    newest = in_head & has_newest
    k_new = _rotated(token_ptr, k_offset, d, newest, cos, sin, k_norm_ptr, eps,
                     HEAD_DIM, ROTARY_DIM, QK_NORM).to(kv_ptr.dtype.element_ty)  # fmt: skip
    v_new = tl.load(token_ptr + k_offset + KV_HEADS * HEAD_DIM + d, mask=newest, other=0.0)
    tl.store(home + d, k_new, mask=newest)
    tl.store(home + KV_HEADS * HEAD_DIM + d, v_new, mask=newest)
    # Columns that no query head fills weigh every token with 0: tensor cores take less power for zeros, and power is
    # what a step of many rows runs out of.
    s_new = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), axis=1) * scale
    top = tl.where(is_head, tl.where(has_newest, s_new, float("-inf")), _NO_TOKEN)
    # A thread adds up the weights of its own tokens; only the end adds those of all.
    total = tl.where(has_newest & (t == 0), 1.0, 0.0)[:, None] + tl.zeros([BLOCK_TOKENS, COLUMNS], tl.float32)
    acc = tl.trans(v_new.to(tl.float32)) + tl.zeros([BLOCK_D, COLUMNS], tl.float32)

    q_columns = tl.trans(q)
    k_row = k_ptr + d
    for i in tl.range(0, num_blocks, num_stages=STAGES):
        position = start + i * BLOCK_TOKENS + t
        offsets = slots.to(tl.int64)[:, None] * SLOT_STRIDE
        k_rows = k_row + offsets
        v_columns = tl.trans(k_rows + KV_HEADS * HEAD_DIM)
        # The next ids ride along: were they loaded in the iteration that uses them, no load could be ahead of its use.
        # Past the end all name the padding slot, which L2 has: a context a little over a block costs no more than its
        # tokens. Nobody's KV will do, since one that is not finite would reach the output: 0 * NaN is NaN.
        following = position + BLOCK_TOKENS
        slots = tl.load(slots_ptr + following, mask=following < old_tokens, other=padding_slot)
        if BLOCK_D == HEAD_DIM:
            k = tl.load(k_rows)
            v = tl.load(v_columns)
        else:
            k = tl.load(k_rows, mask=in_head, other=0.0)
            v = tl.load(v_columns, mask=tl.trans(in_head), other=0.0)
        s = dot(k, q_columns, tl.zeros([BLOCK_TOKENS, COLUMNS], tl.float32), PRECISION)
        s = tl.where((position < old_tokens)[:, None], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, axis=0) * scale)
        p = tl.exp2(s * scale - new_top[None, :])
        decay = tl.exp2(top - new_top)[None, :]
        total = total * decay + p
        acc = dot(v, p.to(v.dtype), acc * decay, PRECISION)
        top = new_top

    denominator = tl.sum(total, axis=0)
    out_row = out_ptr + row.to(tl.int64) * out_stride + head * (GROUP * HEAD_DIM)
    if splits == 1:
        out = tl.trans(acc / denominator[None, :]).to(out_ptr.dtype.element_ty)
        tl.store(out_row + g[:, None] * HEAD_DIM + d, out, mask=in_head & is_head[:, None])
    else:
        home_item = item.to(tl.int64) * KV_HEADS + head
        used = g < GROUP_P2
        tl.store(stats_ptr + home_item * (2 * GROUP_P2) + g, top, mask=used)
        tl.store(stats_ptr + home_item * (2 * GROUP_P2) + GROUP_P2 + g, denominator, mask=used)
        sums = sums_ptr + home_item * (GROUP_P2 * BLOCK_D)
        tl.store(sums + g[:, None] * BLOCK_D + d, tl.trans(acc), mask=used[:, None])
        tl.debug_barrier()  # every thread's part is written before one of them says so
        arrived = tl.atomic_add(arrived_ptr + row * KV_HEADS + head, 1, sem="acq_rel")
        if arrived == splits - 1:
            merged = _merge(sums_ptr, stats_ptr, first_item, splits, head, KV_HEADS, GROUP_P2, BLOCK_D, MERGE)
            m = tl.arange(0, GROUP_P2)
            tl.store(out_row + m[:, None] * HEAD_DIM + d, merged.to(out_ptr.dtype.element_ty),
                     mask=in_head & (m < GROUP)[:, None])  # fmt: skip
            tl.store(arrived_ptr + row * KV_HEADS + head, 0)


def decode_attention(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    slots: SlotTable,
    context_lens: torch.Tensor,
    rope: Rope,
    heads: Heads,
    plan: DecodePlan,
    scratch: DecodeScratch,
    out: torch.Tensor,
    *,
    scale: float | None = None,
    tuning: AttentionTuning | None = None,
    pdl: bool = False,
) -> None:
    """Attend from each row's newest token to its whole context; write its K and V to its slot.

    Args:
        qkv: `[rows, (num_heads + 2 * num_kv_heads) * head_dim]`: q heads, k heads, v heads, not yet rotated.
        kv: one layer of the pool, `[num_slots + 1, 2 * num_kv_heads, head_dim]`, K heads first; bf16 | fp16 | fp32.
        context_lens: `[rows]` int32, the newest token included; 0 for a padding row, whose output is left as it is.
        plan: filled by `decode_plan` for the same lengths and rows.
        out: `[rows, num_heads * head_dim]`, written.
        scale: of the scores; 1 / sqrt(head_dim) by default.

    Raises:
        ValueError: a shape does not fit.
    """
    tuning = tuning or AttentionTuning()
    rows = context_lens.shape[0]
    expect_shape("qkv", qkv, (rows, heads.qkv_width))
    expect_shape("kv", kv, (None, 2 * heads.num_kv_heads, heads.head_dim))
    expect_shape("out", out, (rows, heads.num_heads * heads.head_dim))
    for name, tensor in (("qkv", qkv), ("kv", kv), ("out", out), ("table", slots.table)):
        expect_rows_contiguous(name, tensor)
    if heads.group > 16:
        raise ValueError(f"heads: at most 16 query heads a KV head, got {heads.group}")
    scale = heads.head_dim**-0.5 if scale is None else scale
    group = next_power_of_2(heads.group)
    _decode_attention[(heads.num_kv_heads, rows + plan.target_items)](
        qkv, kv, slots.table, rope.cos, rope.sin,
        rope.q_norm if rope.q_norm is not None else qkv, rope.k_norm if rope.k_norm is not None else qkv,
        plan.items, plan.num_items, scratch.sums, scratch.stats, scratch.arrived, out,
        scale * LOG2_E, rope.eps, slots.table.stride(0), kv.shape[0] - 1, qkv.stride(0), out.stride(0),
        KV_HEADS=heads.num_kv_heads, GROUP=heads.group, GROUP_P2=group,
        HEAD_DIM=heads.head_dim, ROTARY_DIM=2 * rope.cos.shape[1],
        BLOCK_D=max(next_power_of_2(heads.head_dim), MIN_BLOCK_D),
        BLOCK_TOKENS=plan.block_tokens, STAGES=tuning.stages,
        MERGE=min(tuning.merge, max(16 * tuning.warps // group, 1)), SLOT_STRIDE=kv.stride(0), FIELDS=ITEM_FIELDS,
        QK_NORM=rope.q_norm is not None,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        num_warps=tuning.warps, **dependent(pdl),
    )  # fmt: skip
