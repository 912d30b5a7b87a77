"""The cpu backend: the same pool, slots and steps as on a GPU, with torch operations.

Launching is synchronous. Attention is in `cpu_attention`, products are in `cpu_linear`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from services.engine.arrays import Ints
from services.engine.backends import cpu_linear
from services.engine.backends.cpu_attention import AttentionPlan, run_or_index
from services.engine.backends.cpu_host_pages import CpuHostPages
from services.engine.backends.interface import Heads, QkNorm
from services.engine.batch import Batch
from services.engine.models.experts import RoutedMlp
from services.engine.models.layers import Decoder, GatedMlp, Linear
from services.engine.ranks import Ranks
from services.engine.runner import Copy, Done
from services.engine.transfer import layout


@dataclass(frozen=True, slots=True)
class _Step:
    num_tokens: int
    positions: Tensor  # [T]
    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor
    out_slots: slice | Tensor
    attention: AttentionPlan


class CpuBackend:
    """Runs steps in the engine's process; `Backend` says what each method does."""

    name = "cpu"
    pipeline_depth = 0

    def __init__(self, pool: Tensor, slot_table: Ints, heads: Heads, rope: tuple[Tensor, Tensor], ranks: Ranks) -> None:
        self._ranks = ranks
        self.device = torch.device("cpu")
        self.pool = pool
        self._table = slot_table  # the host's own: nothing to copy
        self._heads = heads
        self._cos, self._sin = (table.to(pool.dtype) for table in rope)
        self._next_ids = torch.zeros(slot_table.shape[0] + 1, dtype=torch.int64)
        self._step: _Step | None = None

    def adopt(self, decoder: Decoder) -> Decoder:
        """See Backend: every product's weight is packed; the embedding stays as it is, even where the head is tied."""

        def packed(part: Linear) -> Linear:
            return Linear(cpu_linear.pack(part.weight), part.bias)

        def packed_mlp(mlp: GatedMlp | RoutedMlp) -> GatedMlp | RoutedMlp:
            if isinstance(mlp, RoutedMlp):
                return mlp  # a step takes few of its weights, and few rows through each
            return GatedMlp(packed(mlp.gate_up), packed(mlp.down))

        blocks = [
            replace(
                block,
                attention=replace(block.attention, qkv=packed(block.attention.qkv), out=packed(block.attention.out)),
                mlp=packed_mlp(block.mlp),
            )
            for block in decoder.blocks
        ]
        return replace(decoder, blocks=blocks, head=cpu_linear.pack(decoder.head))

    def prepare(self, batch: Batch) -> Tensor:
        """See Backend."""
        positions = torch.from_numpy(batch.positions()).long()
        self._step = _Step(
            num_tokens=batch.num_tokens,
            positions=positions,
            cos=self._cos[positions].unsqueeze(1),
            sin=self._sin[positions].unsqueeze(1),
            out_slots=run_or_index(batch.out_slots(self._table)),
            attention=AttentionPlan(batch, self._table, self.pool.shape[1] - 1, self.pool.dtype),
        )
        ids = torch.from_numpy(batch.input_ids).long()
        n = batch.num_decode_rows
        if n:
            rows = torch.from_numpy(batch.decode_rows).long()
            ids[:n] = torch.where(ids[:n] < 0, self._next_ids[rows], ids[:n])
        return ids

    def gather(self, slots: Ints, page: Tensor, first_head: int, after: Copy) -> Done:
        """See Device."""
        assert after.done()
        layout.gather(self.pool, torch.from_numpy(slots), page, first_head)
        return Done()

    def end_gathers(self) -> None:
        """See Device."""

    def scatter(self, page: Tensor, slots: Ints, first_head: int = 0) -> Done:
        """See Device."""
        if len(slots):
            layout.scatter(page, torch.from_numpy(slots), self.pool, first_head)
        return Done()

    def host_pages(self, num_pages: int, page_tokens: int) -> CpuHostPages:
        """See Device."""
        return CpuHostPages(self.pool, num_pages, page_tokens)

    def remember(self, rows: Tensor, ids: Tensor) -> None:
        """See Backend."""
        self._next_ids[rows] = ids

    def embed(self, ids: Tensor, weight: Tensor) -> Tensor:
        """See Ops."""
        return functional.embedding(ids, weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        return cpu_linear.linear(x, weight, bias)

    def gated_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Ops."""
        gate, up = cpu_linear.linear(x, weight, bias).chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """See Ops. One expert after another, each over the tokens that chose it."""
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            gate, up = functional.linear(x[tokens], gate_up[expert]).chunk(2, dim=-1)
            hidden = functional.silu(gate).mul_(up)
            out.index_add_(0, tokens, functional.linear(hidden, down[expert]) * weights[tokens, places, None])
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        residual.add_(x)
        return functional.rms_norm(residual, weight.shape, weight, eps)

    def gather_columns(self, x: Tensor) -> Tensor:
        """See Ops."""
        return self._ranks.gather_columns(x)

    def reduce(self, x: Tensor) -> Tensor:
        """See Ops."""
        return self._ranks.total(x)

    def attend(self, layer: int, qkv: Tensor, norm: QkNorm | None) -> Tensor:
        """See Ops."""
        step, heads = self._step, self._heads
        assert step is not None, "attend() before prepare()"
        h, kv, d = heads
        x = qkv.view(step.num_tokens, h + 2 * kv, d)
        if norm is not None:
            x[:, :h] = functional.rms_norm(x[:, :h], (d,), norm.q_weight, norm.eps)
            x[:, h : h + kv] = functional.rms_norm(x[:, h : h + kv], (d,), norm.k_weight, norm.eps)
        qk = x[:, : h + kv]
        torch.addcmul(qk * step.cos, qk.roll(d // 2, -1), step.sin, out=qk)
        return self._attend(layer, x, step)

    @property
    def positions(self) -> Tensor:
        """See Ops."""
        assert self._step is not None, "positions before prepare()"
        return self._step.positions

    def attend_rotated(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """See Ops."""
        assert self._step is not None, "attend_rotated() before prepare()"
        q = q * (scale * self._heads.head_dim**0.5)  # attention scales by the head's width
        return self._attend(layer, torch.cat((q, k, v), dim=1), self._step).view(q.shape)

    def _attend(self, layer: int, x: Tensor, step: _Step) -> Tensor:
        """x: rotated, [num_tokens, num_heads + 2 * num_kv_heads, head_dim]."""
        h, heads = self._heads.num_heads, self._heads
        pool = self.pool[layer]
        if isinstance(step.out_slots, slice):
            pool[step.out_slots] = x[:, h:]
        else:
            pool.index_copy_(0, step.out_slots, x[:, h:])
        return step.attention.attend(pool, x, heads)
