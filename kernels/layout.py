"""The tensors that attention kernels share: head counts, rotation tables, the slot table."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Heads:
    """Head counts of one rank: `num_heads` query heads over `num_kv_heads` KV heads of `head_dim`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of a fused q, k, v row."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotation tables `cos, sin [max_positions, rotary_dim / 2]` float32; per-head norms `[head_dim]` or None."""

    cos: torch.Tensor
    sin: torch.Tensor
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class SlotTable:
    """`table [max_rows, width]` int32: request row -> slots; `rows [batch]` int32: batch row -> request row.

    Kernels read whole blocks of tokens: past a request's end they read the pool's last slot instead, the padding slot,
    whose values must be finite, but count for nothing. No other request's slot is read, whatever its values.
    """

    table: torch.Tensor
    rows: torch.Tensor
