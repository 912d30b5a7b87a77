"""A pool with scattered slots and a slot table over it, for attention tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.layout import Heads, Rope, SlotTable


@dataclass(frozen=True, slots=True)
class Pool:
    kv: torch.Tensor
    slots: SlotTable
    rope: Rope
    heads: Heads


def make_rope(head_dim: int, rotary_dim: int, norm: bool, dtype: torch.dtype, device: torch.device) -> Rope:
    frequency = 10000.0 ** (-torch.arange(0, rotary_dim, 2, device=device) / rotary_dim)
    angles = torch.arange(512, device=device)[:, None] * frequency
    q_norm, k_norm = (torch.rand(head_dim, device=device).add(0.5).to(dtype) if norm else None for _ in range(2))
    return Rope(angles.cos(), angles.sin(), q_norm, k_norm)


def make_pool(
    context_lens: list[int], heads: Heads, dtype: torch.dtype, device: torch.device, *, norm: bool = False,
    rotary_dim: int | None = None, width: int = 512,
) -> Pool:  # fmt: skip
    """Return a pool whose requests own scattered slots; table tails name the zeroed last slot."""
    num_slots = sum(context_lens) + 7
    kv = torch.randn(num_slots + 1, 2 * heads.num_kv_heads, heads.head_dim, device=device).to(dtype)
    kv[-1] = 0
    table = torch.full((len(context_lens) + 2, width), num_slots, dtype=torch.int32, device=device)
    rows = torch.randperm(len(context_lens) + 2)[: len(context_lens)].to(torch.int32).to(device)
    free = torch.randperm(num_slots).to(torch.int32).to(device)
    first = 0
    for row, length in zip(rows.tolist(), context_lens, strict=True):
        table[row, :length] = free[first : first + length]
        first += length
    rope = make_rope(heads.head_dim, rotary_dim or heads.head_dim, norm, dtype, device)
    return Pool(kv, SlotTable(table, rows), rope, heads)
