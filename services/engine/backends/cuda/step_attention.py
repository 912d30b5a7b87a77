"""Decode attention inside a step of fixed buffers: one work list for all layers."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kernels.decode_attention import DecodeScratch, decode_attention
from kernels.decode_plan import DecodePlan, decode_plan
from kernels.layout import Heads, Rope, SlotTable
from services.engine.backends.cuda.recipe import DecodeRecipe
from services.engine.models.layers import Attention


class StepAttention:
    """Owned by a step of `rows` rows: `plan` once, then a launch a layer."""

    def __init__(self, heads: Heads, rope: Rope, pool: Tensor, rows: int, recipe: DecodeRecipe) -> None:
        self._heads, self._rope, self._pool, self._recipe = heads, rope, pool, recipe
        self._plan = DecodePlan.allocate(
            rows, recipe.block_tokens, recipe.target_items, pool.device, recipe.min_split_blocks
        )
        self._scratch = DecodeScratch.allocate(self._plan, heads)

    def plan(self, context_lens: Tensor, slots: SlotTable) -> None:
        """Launch the making of the work list."""
        decode_plan(context_lens, slots.rows, self._plan, pdl=self._recipe.pdl)

    def __call__(
        self, layer: int, attention: Attention, qkv: Tensor, context_lens: Tensor, slots: SlotTable, out: Tensor
    ) -> None:
        """Launch a layer's attention from `qkv` into `out`; the new K and V go to their slots."""
        rope, norm = self._rope, attention.qk_norm
        if norm is not None:
            rope = replace(rope, q_norm=norm.q_weight, k_norm=norm.k_weight, eps=norm.eps)
        decode_attention(
            qkv, self._pool[layer], slots, context_lens, rope, self._heads, self._plan, self._scratch, out,
            tuning=self._recipe.attention, pdl=self._recipe.pdl,
        )  # fmt: skip
