"""Attention of prompt chunks over the slot table: causal, ragged, with whatever prefix is already in the pool.

`out[i] = softmax(scale * q_i K^T) V` over the tokens of the request up to and with token i, by blocks of keys with a
running maximum and denominator (FlashAttention-2, algorithm 1). K and V of the chunk itself are in their slots before
(`rope_kv_write`). Blocks of keys that every query of a tile sees run without a mask, then the diagonal with one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import LOG2_E, MIN_BLOCK_D, dot, expect_rows_contiguous, expect_shape, next_power_of_2
from kernels.layout import Heads, SlotTable


@dataclass(frozen=True, slots=True)
class PrefillTuning:
    """Query rows and keys of a tile, loads in flight, warps."""

    block_queries: int = 128
    block_keys: int = 64
    stages: int = 3
    warps: int = 8


@triton.jit
def _attend(q, acc, total, top, slots, k_ptr, v_ptr, slots_ptr, first_block, last_block, q_positions, context_len,
            readable, padding_slot, slot_stride, d, scale, BLOCK_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr,
            BLOCK_D: tl.constexpr, STAGES: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Run blocks `first_block .. last_block`; return the running sum, denominator, maximum and the next slot ids."""
    t = tl.arange(0, BLOCK_KEYS)
    for block in tl.range(first_block, last_block, num_stages=STAGES):
        position = block * BLOCK_KEYS + t
        offsets = slots.to(tl.int64)[:, None] * slot_stride + d[None, :]
        slots = tl.load(slots_ptr + position + BLOCK_KEYS, mask=position + BLOCK_KEYS < readable, other=padding_slot)
        if BLOCK_D == HEAD_DIM:
            k = tl.load(k_ptr + offsets)
            v = tl.load(v_ptr + offsets)
        else:
            k = tl.load(k_ptr + offsets, mask=(d < HEAD_DIM)[None, :], other=0.0)
            v = tl.load(v_ptr + offsets, mask=(d < HEAD_DIM)[None, :], other=0.0)
        s = dot(q, tl.trans(k), tl.zeros([q.shape[0], BLOCK_KEYS], tl.float32), PRECISION)
        if MASKED:
            seen = (position[None, :] <= q_positions[:, None]) & (position < context_len)[None, :]
            s = tl.where(seen, s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, axis=1) * scale)
        p = tl.exp2(s * scale - new_top[:, None])
        decay = tl.exp2(top - new_top)
        total = total * decay + tl.sum(p, axis=1)
        acc = dot(p.to(v.dtype), v, acc * decay[:, None], PRECISION)
        top = new_top
    return acc, total, top, slots


@triton.jit
def _prefill_attention(
    q_ptr, kv_ptr, table_ptr, rows_ptr, tiles_ptr, query_start_ptr, lens_ptr, out_ptr, scale, table_stride, table_width,
    padding_slot, q_stride, slot_stride, out_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid `(num_heads, num_tiles)`: the heads of a group run side by side and share K and V in L2. 64-bit offsets."""
    head = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(tiles_ptr + 2 * tile)
    first_query = tl.load(tiles_ptr + 2 * tile + 1)
    chunk_start = tl.load(query_start_ptr + row)
    chunk_len = tl.load(query_start_ptr + row + 1) - chunk_start
    context_len = tl.load(lens_ptr + row)
    slots_ptr = table_ptr + tl.load(rows_ptr + row).to(tl.int64) * table_stride
    queries = first_query + tl.arange(0, BLOCK_QUERIES)
    positions = context_len - chunk_len + queries
    d = tl.arange(0, BLOCK_D)
    live = (queries < chunk_len)[:, None] & (d < HEAD_DIM)[None, :]
    tokens = (chunk_start + queries).to(tl.int64)[:, None]
    q = tl.load(q_ptr + tokens * q_stride + head * HEAD_DIM + d[None, :], mask=live, other=0.0)
    k_ptr = kv_ptr + head // GROUP * HEAD_DIM
    v_ptr = k_ptr + KV_HEADS * HEAD_DIM

    top = tl.full([BLOCK_QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    acc = tl.zeros([BLOCK_QUERIES, BLOCK_D], tl.float32)
    first_position = context_len - chunk_len + first_query
    whole = (first_position + 1) // BLOCK_KEYS
    blocks = tl.cdiv(tl.minimum(first_position + BLOCK_QUERIES, context_len), BLOCK_KEYS)
    t = tl.arange(0, BLOCK_KEYS)
    readable = tl.minimum(context_len, table_width)  # a chunk of padding may be longer than any request
    slots = tl.load(slots_ptr + t, mask=t < readable, other=padding_slot)
    acc, total, top, slots = _attend(
        q, acc, total, top, slots, k_ptr, v_ptr, slots_ptr, 0, whole, positions, context_len, readable, padding_slot,
        slot_stride, d, scale, BLOCK_KEYS, HEAD_DIM, BLOCK_D, STAGES, False, PRECISION)  # fmt: skip
    acc, total, top, slots = _attend(
        q, acc, total, top, slots, k_ptr, v_ptr, slots_ptr, whole, blocks, positions, context_len, readable,
        padding_slot, slot_stride, d, scale, BLOCK_KEYS, HEAD_DIM, BLOCK_D, STAGES, True, PRECISION)  # fmt: skip
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + tokens * out_stride + head * HEAD_DIM + d[None, :], out, mask=live)


def prefill_tiles(query_lens: list[int], context_lens: list[int], block_queries: int) -> list[tuple[int, int]]:
    """Return the tiles `(row, first query)` of ragged chunks, those with most keys first so that none runs last alone.

    `context_lens` counts the chunk's own tokens.
    """
    tiles = [
        (length - context - first, row, first)
        for row, (length, context) in enumerate(zip(query_lens, context_lens, strict=True))
        for first in range(0, length, block_queries)
    ]
    tiles.sort()
    return [(row, first) for _, row, first in tiles]


def prefill_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    slots: SlotTable,
    tiles: torch.Tensor,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    heads: Heads,
    out: torch.Tensor,
    *,
    scale: float | None = None,
    tuning: PrefillTuning | None = None,
) -> None:
    """Attend from every token of the chunks to its request's tokens up to itself.

    Args:
        q: `[num_tokens, >= num_heads * head_dim]`, rotated; the fused qkv rows will do.
        kv: one layer of the pool, `[num_slots + 1, 2 * num_kv_heads, head_dim]`, the chunks' K and V written.
        slots: as `SlotTable` says; row `i` of the batch is chunk `i`.
        tiles: `[num_tiles, 2]` int32, from `prefill_tiles` with `tuning.block_queries`.
        query_start: `[chunks + 1]` int32: where each chunk's tokens begin in `q`.
        context_lens: `[chunks]` int32: cached prefix + chunk.
        out: `[num_tokens, num_heads * head_dim]`, written.

    Raises:
        ValueError: a shape does not fit.
    """
    tuning = tuning or PrefillTuning()
    expect_shape("kv", kv, (None, 2 * heads.num_kv_heads, heads.head_dim))
    expect_shape("tiles", tiles, (None, 2))
    expect_shape("query_start", query_start, (context_lens.shape[0] + 1,))
    expect_shape("out", out, (q.shape[0], heads.num_heads * heads.head_dim))
    for name, tensor in (("q", q), ("kv", kv), ("out", out), ("table", slots.table)):
        expect_rows_contiguous(name, tensor)
    if tiles.shape[0] == 0:
        return
    scale = heads.head_dim**-0.5 if scale is None else scale
    _prefill_attention[(heads.num_heads, tiles.shape[0])](
        q, kv, slots.table, slots.rows, tiles, query_start, context_lens, out, scale * LOG2_E, slots.table.stride(0),
        slots.table.shape[1], kv.shape[0] - 1, q.stride(0), kv.stride(0), out.stride(0),
        KV_HEADS=heads.num_kv_heads, GROUP=heads.group, HEAD_DIM=heads.head_dim,
        BLOCK_D=max(next_power_of_2(heads.head_dim), MIN_BLOCK_D),
        BLOCK_QUERIES=tuning.block_queries, BLOCK_KEYS=tuning.block_keys,
        STAGES=tuning.stages, PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=tuning.warps,
    )  # fmt: skip
