"""Rope, decode attention and prefill attention over scattered slots."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.decode_attention import AttentionTuning, DecodeScratch, decode_attention
from kernels.decode_plan import DecodePlan, decode_plan
from kernels.layout import Heads
from kernels.prefill_attention import PrefillTuning, prefill_attention, prefill_tiles
from kernels.rope_kv_write import rope_kv_write
from tests.kernels.close import assert_close
from tests.kernels.paged import Pool, make_pool


def decode(pool: Pool, qkv: torch.Tensor, context_lens: list[int], block: int, target: int) -> torch.Tensor:
    device = qkv.device
    lens = torch.tensor(context_lens, dtype=torch.int32, device=device)
    plan = DecodePlan.allocate(len(context_lens), block, target, device)
    scratch = DecodeScratch.allocate(plan, pool.heads)
    out = torch.full((len(context_lens), pool.heads.num_heads * pool.heads.head_dim), float("nan"),
                     device=device, dtype=qkv.dtype)  # fmt: skip
    decode_plan(lens, pool.slots.rows, plan)
    decode_attention(qkv, pool.kv, pool.slots, lens, pool.rope, pool.heads, plan, scratch, out,
                     tuning=AttentionTuning(stages=3, merge=2))  # fmt: skip
    assert scratch.arrived.sum() == 0, "the counters must be ready for the next launch"
    return out


def prefill(pool: Pool, qkv: torch.Tensor, query_lens: list[int], context_lens: list[int]) -> torch.Tensor:
    heads, device = pool.heads, qkv.device
    out = torch.full((sum(query_lens), heads.num_heads * heads.head_dim), float("nan"), device=device, dtype=qkv.dtype)
    tuning = PrefillTuning(block_queries=16, block_keys=16, stages=2, warps=4)
    tiles = torch.tensor(prefill_tiles(query_lens, context_lens, 16), dtype=torch.int32, device=device)
    starts = torch.tensor([0, *query_lens], dtype=torch.int32, device=device).cumsum(0).to(torch.int32)
    lens = torch.tensor(context_lens, dtype=torch.int32, device=device)
    prefill_attention(qkv, pool.kv, pool.slots, tiles, starts, lens, heads, out, tuning=tuning)
    return out


def decode_reference(pool: Pool, qkv: torch.Tensor, context_lens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    kv = pool.kv.clone()
    positions = torch.tensor(context_lens, device=qkv.device) - 1
    new_slots = pool.slots.table[pool.slots.rows.long(), positions]
    rotated = reference.rope_kv_write(qkv, kv, new_slots, positions, pool.rope, pool.heads)
    q, _, _ = reference.split_qkv(rotated, pool.heads)
    return reference.attention(q, kv, pool.slots, [1] * len(context_lens), context_lens, pool.heads), kv


@pytest.mark.parametrize(
    ("heads", "context_lens", "norm", "rotary_dim", "target"),
    [
        (Heads(4, 1, 64), [1, 2, 16, 17, 33], False, 64, 2),
        (Heads(9, 3, 64), [100], False, 64, 8),
        (Heads(2, 2, 80), [40, 7], True, 40, 4),
        (Heads(8, 2, 128), [5, 90], True, 128, 6),
    ],
    ids=["ragged", "split", "odd-head", "normed"],
)
def test_decode_attention_equals_reference(
    device: torch.device, dtype: torch.dtype, heads: Heads, context_lens: list[int], norm: bool, rotary_dim: int,
    target: int,
) -> None:  # fmt: skip
    pool = make_pool(context_lens, heads, dtype, device, norm=norm, rotary_dim=rotary_dim)
    qkv = torch.randn(len(context_lens), heads.qkv_width, device=device).to(dtype)
    expected, kv = decode_reference(pool, qkv, context_lens)
    out = decode(pool, qkv, context_lens, block=16, target=target)
    assert_close(out, expected)
    assert_close(pool.kv, kv)


def test_decode_leaves_padding_rows_alone(device: torch.device) -> None:
    heads = Heads(4, 2, 64)
    pool = make_pool([20, 1], heads, torch.float32, device)
    qkv = torch.randn(2, heads.qkv_width, device=device)
    before = pool.kv.clone()
    out = decode(pool, qkv, [20, 0], block=16, target=4)
    assert out[1].isnan().all()
    assert (pool.kv != before).any(dim=(1, 2)).sum() == 1, "only the live row writes its slot"


@pytest.mark.parametrize("context_lens", [[0], [1, 1, 1], [129, 0, 5], [2000, 1, 16, 17, 0, 300]])
@pytest.mark.parametrize("target", [1, 7, 64])
def test_work_list_covers_each_context_once(device: torch.device, context_lens: list[int], target: int) -> None:
    plan = DecodePlan.allocate(len(context_lens), 16, target, device)
    rows = torch.arange(len(context_lens), dtype=torch.int32, device=device).flip(0)
    decode_plan(torch.tensor(context_lens, dtype=torch.int32, device=device), rows, plan)
    num_items = int(plan.num_items)
    assert num_items <= len(context_lens) + target
    items = plan.items[:num_items].tolist()
    for row, length in enumerate(context_lens):
        mine = [(i, item) for i, item in enumerate(items) if item[0] == row]
        assert bool(mine) == (length > 0)
        blocks = [b for _, (_, first, count, *_) in mine for b in range(first, first + count)]
        assert blocks == list(range(-(-max(length - 1, 0) // 16)))
        told = [mine[0][0], len(mine), length - 1, len(context_lens) - 1 - row] if mine else []
        assert all(item[3:7] == told for _, item in mine)


def test_tiles_cover_each_query_once_and_those_with_most_keys_come_first() -> None:
    tiles = prefill_tiles([40, 0, 16, 1, 16], [40, 0, 100, 31, 16], 16)
    assert tiles == [(2, 0), (0, 32), (3, 0), (0, 16), (0, 0), (4, 0)]
    assert prefill_tiles([], [], 16) == []


@pytest.mark.parametrize(
    ("heads", "query_lens", "context_lens"),
    [
        (Heads(4, 2, 64), [1, 17, 40], [1, 50, 40]),
        (Heads(3, 1, 80), [33], [65]),
        (Heads(4, 1, 128), [16, 5], [16, 21]),
    ],
    ids=["ragged", "odd-head", "wide"],
)
def test_prefill_attention_equals_reference(
    device: torch.device, dtype: torch.dtype, heads: Heads, query_lens: list[int], context_lens: list[int]
) -> None:
    pool = make_pool(context_lens, heads, dtype, device)
    qkv = torch.randn(sum(query_lens), heads.qkv_width, device=device).to(dtype)
    q, _, _ = reference.split_qkv(qkv, heads)
    expected = reference.attention(q, pool.kv, pool.slots, query_lens, context_lens, heads)
    assert_close(prefill(pool, qkv, query_lens, context_lens), expected)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_slot_of_another_request_reaches_the_output(device: torch.device, phase: str, value: float) -> None:
    heads, context_lens = Heads(4, 2, 64), [5, 40]
    pool = make_pool(context_lens, heads, torch.float32, device)
    own = {
        int(slot) for row, n in zip(pool.slots.rows, context_lens, strict=True) for slot in pool.slots.table[row, :n]
    }
    others = [slot for slot in range(pool.kv.shape[0] - 1) if slot not in own]
    if 0 in own:  # the first slot is the one that is easily read by mistake: it is another's here
        pool.slots.table[pool.slots.table == 0] = others[0]
        pool.kv[others[0]] = pool.kv[0]
        others[0] = 0
    qkv = torch.randn(len(context_lens), heads.qkv_width, device=device)

    def attend() -> torch.Tensor:
        if phase == "decode":
            return decode(pool, qkv, context_lens, block=16, target=4)
        return prefill(pool, qkv, [1, 1], context_lens)

    expected = attend()
    pool.kv[others] = value
    assert torch.equal(attend(), expected)


@pytest.mark.parametrize(
    ("heads", "norm", "rotary_dim"), [(Heads(9, 3, 64), False, 64), (Heads(2, 1, 80), True, 40)]
)  # fmt: skip
def test_rope_rotates_in_place_and_writes_slots(
    device: torch.device, dtype: torch.dtype, heads: Heads, norm: bool, rotary_dim: int
) -> None:
    pool = make_pool([6], heads, dtype, device, norm=norm, rotary_dim=rotary_dim)
    qkv = torch.randn(4, heads.qkv_width, device=device).to(dtype)
    slots = torch.tensor([3, 9, 0, 5], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 1, 77, 511], dtype=torch.int32, device=device)
    kv = pool.kv.clone()
    expected = reference.rope_kv_write(qkv, kv, slots, positions, pool.rope, heads)
    rope_kv_write(qkv, pool.kv, slots, positions, pool.rope, heads)
    assert_close(qkv, expected)
    assert_close(pool.kv, kv)
