"""The cpu backend: the same pool, slots and steps as on a GPU, with torch operations.

Launching is synchronous. A row whose slots form one run is attended through a view of the pool, any other through a
gather of its slots; both cost the same at small contexts.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.engine.arrays import Ints
from services.engine.backends import cpu_linear
from services.engine.backends.interface import Heads, QkNorm
from services.engine.batch import Batch
from services.engine.models.layers import Decoder, Linear
from services.engine.transfer import layout


@dataclass(frozen=True, slots=True)
class _Span:
    """One row's part of a step: its query tokens and the slots of its whole context."""

    first_token: int
    num_tokens: int
    slots: slice | Tensor
    mask: Tensor | None
    """[num_tokens, context], True where a query may look; None when `causal` or one token says it all."""
    causal: bool


@dataclass(frozen=True, slots=True)
class _Step:
    num_tokens: int
    cos: Tensor  # [T, 1, head_dim]
    sin: Tensor
    out_slots: slice | Tensor
    spans: list[_Span]


class CpuBackend:
    """Runs steps in the engine's process; `Backend` says what each method does."""

    name = "cpu"
    pipeline_depth = 0

    def __init__(self, pool: Tensor, slot_table: Ints, heads: Heads, rope: tuple[Tensor, Tensor]) -> None:
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

        blocks = [
            replace(
                block,
                attention=replace(block.attention, qkv=packed(block.attention.qkv), out=packed(block.attention.out)),
                mlp=replace(block.mlp, gate_up=packed(block.mlp.gate_up), down=packed(block.mlp.down)),
            )
            for block in decoder.blocks
        ]
        return replace(decoder, blocks=blocks, head=cpu_linear.pack(decoder.head))

    def prepare(self, batch: Batch) -> Tensor:
        """See Backend."""
        positions = torch.from_numpy(batch.positions).long()
        self._step = _Step(
            num_tokens=batch.num_tokens,
            cos=self._cos[positions].unsqueeze(1),
            sin=self._sin[positions].unsqueeze(1),
            out_slots=_run_or_index(batch.out_slots),
            spans=self._spans(batch),
        )
        ids = torch.from_numpy(batch.input_ids).long()
        n = batch.num_decode_rows
        if n:
            rows = torch.from_numpy(batch.decode_rows).long()
            ids[:n] = torch.where(ids[:n] < 0, self._next_ids[rows], ids[:n])
        return ids

    def _spans(self, batch: Batch) -> list[_Span]:
        table = self._table
        spans = [
            _Span(i, 1, _run_or_index(table[row, :length]), None, causal=False)
            for i, (row, length) in enumerate(zip(batch.decode_rows.tolist(), batch.context_lens.tolist(), strict=True))
        ]
        first = batch.num_decode_rows
        for chunk in batch.chunks:
            mask = _chunk_mask(chunk.start, chunk.length) if chunk.start and chunk.length > 1 else None
            slots = _run_or_index(table[chunk.row, : chunk.end])
            spans.append(_Span(first, chunk.length, slots, mask, causal=chunk.start == 0))
            first += chunk.length
        return spans

    def gather(self, slots: Ints, page: Tensor) -> "CpuBackend":
        """See Backend; done when it returns."""
        layout.gather(self.pool, torch.from_numpy(slots), page)
        return self

    def scatter(self, page: Tensor, slots: Ints) -> "CpuBackend":
        """See Backend; done when it returns."""
        if len(slots):
            layout.scatter(page, torch.from_numpy(slots), self.pool)
        return self

    def done(self) -> bool:
        """See Copy."""
        return True

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

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        residual.add_(x)
        return functional.rms_norm(residual, weight.shape, weight, eps)

    def reduce(self, x: Tensor) -> Tensor:
        """See Ops."""
        return x

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
        pool = self.pool[layer]
        if isinstance(step.out_slots, slice):
            pool[step.out_slots] = x[:, h:]
        else:
            pool.index_copy_(0, step.out_slots, x[:, h:])
        parts = [self._attend_span(pool, x, span) for span in step.spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_span(self, pool: Tensor, x: Tensor, span: _Span) -> Tensor:
        """Return [num_tokens, num_heads * head_dim] of one row."""
        h, kv, d = self._heads
        n = span.num_tokens
        context = pool[span.slots] if isinstance(span.slots, slice) else pool.index_select(0, span.slots)
        k = context[:, :kv].transpose(0, 1).unsqueeze(0)
        v = context[:, kv:].transpose(0, 1).unsqueeze(0)
        if n == 1:  # the heads of one KV head as its queries: no head is repeated
            q = x[span.first_token, :h].view(1, kv, h // kv, d)
            return functional.scaled_dot_product_attention(q, k, v).view(1, h * d)
        q = x[span.first_token : span.first_token + n, :h].transpose(0, 1).unsqueeze(0)
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=span.mask, is_causal=span.causal, enable_gqa=h != kv
        )
        return out.squeeze(0).transpose(0, 1).reshape(n, h * d)


def _run_or_index(slots: Ints) -> slice | Tensor:
    """One run of slots as a slice (a view of the pool), any others as an index."""
    n = len(slots)
    first = int(slots[0])
    if int(slots[-1]) - first == n - 1 and bool(np.all(slots[1:] - slots[:-1] == 1)):
        return slice(first, first + n)
    return torch.from_numpy(slots).long()


def _chunk_mask(start: int, length: int) -> Tensor:
    """Causal mask of a chunk behind `start` earlier tokens: [length, start + length], True where visible."""
    return torch.ones(length, start + length, dtype=torch.bool).tril_(start)
