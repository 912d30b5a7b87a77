"""A prefill step: chunks of prompts through the decoder, launched kernel by kernel.

Products run through cuBLAS, which adds the residual in its own epilogue; where rows are many, Hopper computes the MLP's
first product and its activation in one kernel. Whole prompts of equal length, of shapes that were planned, attend
through cuDNN, straight from the fused q, k, v rows; all else, such as ragged chunks and chunks behind a cached prefix,
through the Triton kernel over the slot table. The last layer writes every token's K and V, but computes the rest only
for the tokens whose logits are asked for: one layer's attention and MLP less for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.experts import routed_experts
from kernels.gated_gemm import gated_gemm, takes
from kernels.layout import Heads, Rope, SlotTable
from kernels.prefill_attention import PrefillTuning, prefill_attention
from kernels.rms_norm import rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.swiglu import swiglu
from services.engine.backends.cuda.rank_sums import RankSums
from services.engine.models.experts import RoutedMlp
from services.engine.models.layers import Block, Decoder, Linear

_FEW = 32
"""Tokens for each one whose logits are asked for, and such tokens at least, from which on q of the last layer is
computed for these alone. Short steps are bound by reading the weights, once is best there."""
_MANY = 1024
"""Rows from which on the MLP's first product and its activation are one kernel. cuBLAS is better at few."""


class Begun(NamedTuple):
    """A step whose ids are on the device and all else may still be packed."""

    residual: Tensor  # [num_tokens, hidden]
    normed: Tensor
    """Room for the norms."""
    qkv: Tensor
    """The first layer's fused rows, not rotated."""


@dataclass(frozen=True, slots=True)
class PrefillBatch:
    """One step's chunks, on the device, int32 where not said otherwise.

    ids, positions, slots: `[num_tokens]`.
    query_start: `[chunks + 1]`; context_lens: `[chunks]`, the chunk included.
    tiles, last_tiles: from `prefill_tiles`, of all queries and of the chunks' last tokens.
    logits_tokens: `[n]`: the last tokens of those chunks whose logits are needed.
    scored: `[m]`: tokens whose final states are asked for, to score the tokens behind them; None for none.
    whole: `(prompts, length)` when all chunks are whole prompts of one length, else None.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_start: Tensor
    context_lens: Tensor
    tiles: Tensor
    last_tiles: Tensor
    table: SlotTable
    logits_tokens: Tensor
    whole: tuple[int, int] | None
    scored: Tensor | None = None


class PrefillStep:
    """Called by the backend on the compute stream; owns nothing but its choices."""

    def __init__(
        self, decoder: Decoder, heads: Heads, rope: Rope, pool: Tensor,
        tuning: PrefillTuning, sums: RankSums | None = None, *, one_kernel: bool = False,
    ) -> None:  # fmt: skip
        """`sums`: of the ranks that the decoder is split over; None for one. `one_kernel`: whether the card runs
        `kernels.gated_gemm`, and the weights have a dtype that it takes."""
        self._decoder, self._heads, self._rope, self._pool = decoder, heads, rope, pool
        self._tuning, self._sums, self._one_kernel = tuning, sums, one_kernel
        self._planned: set[tuple[int, int]] = set()
        """What cuDNN attends to, as `PrefillBatch.whole`."""

    def plan(self, shapes: list[tuple[int, int]]) -> None:
        """Have cuDNN attend in steps of so many whole prompts of one length: of `(prompts, length)`.

        For each it makes a plan first, 40 ms, and for the first of all it loads its code, half a second. None in
        float32, which it does not take, nor without a card.
        """
        if not self._pool.is_cuda or self._pool.dtype == torch.float32:
            return
        width = (self._heads.num_heads + 2 * self._heads.num_kv_heads) * self._heads.head_dim
        for prompts, length in shapes:
            qkv = torch.zeros(prompts * length, width, dtype=self._pool.dtype, device=self._pool.device)
            attend_whole(qkv, (prompts, length), self._heads)
            self._planned.add((prompts, length))

    def __call__(self, batch: PrefillBatch) -> Tensor:
        """Write the chunks' K and V; return logits `[len(logits_tokens), vocab]`, of this rank's share."""
        return self.logits(self.final_states(batch))

    def logits(self, states: Tensor) -> Tensor:
        """`[n, hidden]` as from `final_states` -> `[n, vocab]`, of this rank's share."""
        return torch.mm(states, self._decoder.head.t())

    def begin(self, ids: Tensor) -> Begun:
        """Launch what needs nothing of a batch but its ids; the first product takes the device longer than the host
        packs the rest."""
        block = self._decoder.blocks[0]
        residual = self._decoder.embedding[ids]
        normed = torch.empty_like(residual)
        rms_norm(residual, block.attention_norm, normed, self._decoder.norm_eps, pdl=True)
        return Begun(residual, normed, _product(normed, block.attention.qkv))

    def final_states(self, batch: PrefillBatch, begun: Begun | None = None) -> Tensor:
        """Write the chunks' K and V; return the normed states `[n, hidden]` of `logits_tokens`, then of `scored`.

        `begun`: of the batch's ids, if they were sent before the rest.
        """
        decoder, wanted = self._decoder, batch.logits_tokens
        if batch.scored is not None:
            wanted = torch.cat((wanted, batch.scored))
        residual, normed, qkv = begun or self.begin(batch.ids)
        for i, (block, following) in enumerate(pairwise(decoder.blocks)):
            attended = self._attend(i, block, qkv, batch)
            self._finish(block, attended, residual, normed)
            rms_norm(residual, following.attention_norm, normed, decoder.norm_eps, pdl=True)
            is_last = i + 2 == len(decoder.blocks)
            linear = following.attention.qkv
            qkv = self._qkv_of_few(linear, normed, wanted) if is_last else _product(normed, linear)
        return self._last(batch, residual, qkv, wanted)

    def _last(self, batch: PrefillBatch, residual: Tensor, qkv: Tensor, wanted: Tensor) -> Tensor:
        decoder, block, layer = self._decoder, self._decoder.blocks[-1], len(self._decoder.blocks) - 1
        self._rotate(layer, block, qkv, batch)
        if wanted.numel():
            attended = torch.empty(len(residual), self._heads.num_heads * self._heads.head_dim,
                                   dtype=qkv.dtype, device=qkv.device)  # fmt: skip
            tiles = batch.last_tiles if batch.scored is None else batch.tiles
            self._paged(layer, qkv, batch, tiles, attended)
            residual, attended = residual[wanted], attended[wanted]
            normed = torch.empty_like(residual)
            self._finish(block, attended, residual, normed)
            rms_norm(residual, decoder.norm, normed, decoder.norm_eps, pdl=True)
            return normed
        return residual.new_empty(0, residual.shape[1])

    def _finish(self, block: Block, attended: Tensor, residual: Tensor, normed: Tensor) -> None:
        """Add attention's output and the MLP to the residual."""
        self._add_product(residual, attended, block.attention.out)
        rms_norm(residual, block.mlp_norm, normed, self._decoder.norm_eps, pdl=True)
        mlp = block.mlp
        if isinstance(mlp, RoutedMlp):
            self._add(residual, routed_experts(normed, *mlp.choose(normed), mlp.gate_up, mlp.down))
            return
        self._add_product(residual, self._gated(normed, mlp.gate_up), mlp.down)

    def _gated(self, x: Tensor, gate_up: Linear) -> Tensor:
        """Return `silu(gate) * up`, in one kernel where rows are many."""
        inner = x.new_empty(len(x), len(gate_up.weight) // 2)
        if self._one_kernel and len(x) >= _MANY and gate_up.bias is None and takes(gate_up.weight):
            gated_gemm(x, gate_up.weight, inner)
        else:
            swiglu(_product(x, gate_up), inner, pdl=True)
        return inner

    def _add(self, residual: Tensor, x: Tensor) -> None:
        if self._sums is None:
            residual.add_(x)
        else:
            self._sums.add(self._sums.partial(len(x)).copy_(x), residual)

    def _add_product(self, residual: Tensor, x: Tensor, linear: Linear) -> None:
        if self._sums is None:
            torch.addmm(residual, x, linear.weight.t(), out=residual)
            if linear.bias is not None:
                residual.add_(linear.bias)
            return
        partial = self._sums.partial(len(x))
        torch.mm(x, linear.weight.t(), out=partial)
        if linear.bias is not None:
            partial.add_(linear.bias)
        self._sums.add(partial, residual)

    def _qkv_of_few(self, linear: Linear, normed: Tensor, wanted: Tensor) -> Tensor:
        """Return the fused q, k, v rows of all tokens, but q of those in `wanted` alone where they are few: the others'
        is not written."""
        if len(normed) < _FEW * max(wanted.numel(), _FEW):
            return _product(normed, linear)
        width, bias = self._heads.num_heads * self._heads.head_dim, linear.bias
        q, kv = (Linear(linear.weight[at], None if bias is None else bias[at])
                 for at in (slice(None, width), slice(width, None)))  # fmt: skip
        qkv = normed.new_empty(len(normed), len(linear.weight))
        qkv[:, width:] = _product(normed, kv)
        index = wanted.long()
        qkv[index, :width] = _product(normed[index], q)
        return qkv

    def _rotate(self, layer: int, block: Block, qkv: Tensor, batch: PrefillBatch) -> None:
        """Rotate q and k of the fused rows; write k and v to their slots.

        In the first layer not before the kernel in front has ended: it may be the copy of slots and positions.
        """
        norm = block.attention.qk_norm
        rope = self._rope
        if norm is not None:
            rope = replace(rope, q_norm=norm.q_weight, k_norm=norm.k_weight, eps=norm.eps)
        rope_kv_write(qkv, self._pool[layer], batch.slots, batch.positions, rope, self._heads, pdl=layer > 0)

    def _attend(self, layer: int, block: Block, qkv: Tensor, batch: PrefillBatch) -> Tensor:
        self._rotate(layer, block, qkv, batch)
        if batch.whole is not None and batch.whole in self._planned:
            return attend_whole(qkv, batch.whole, self._heads)
        out = qkv.new_empty(len(qkv), self._heads.num_heads * self._heads.head_dim)
        self._paged(layer, qkv, batch, batch.tiles, out)
        return out

    def _paged(self, layer: int, qkv: Tensor, batch: PrefillBatch, tiles: Tensor, out: Tensor) -> None:
        prefill_attention(qkv, self._pool[layer], batch.table, tiles, batch.query_start, batch.context_lens,
                          self._heads, out, tuning=self._tuning)  # fmt: skip


def attend_whole(qkv: Tensor, whole: tuple[int, int], heads: Heads) -> Tensor:
    """Return what cuDNN attends to in `qkv`, rows of as many prompts of one length as `whole` says, `(prompts,
    length)`, with nothing cached: `[rows, num_heads * head_dim]`."""
    x = qkv.view(*whole, -1, heads.head_dim).transpose(1, 2)
    q, k, v = x.split([heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(len(qkv), heads.num_heads * heads.head_dim)


def _product(x: Tensor, linear: Linear) -> Tensor:
    return torch.nn.functional.linear(x, linear.weight, linear.bias)
