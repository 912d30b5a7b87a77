"""Attention over slots on the CPU: what a step attends to, planned once for all layers.

A row whose slots form one run is attended through a view of the pool, any other through a gather of its slots. Decode
rows with short contexts are gathered into one padded batch instead: a call for each of them costs more than the padding
(measured with 16 rows in float32: 343 against 172 us at 48 tokens, alike at 192, 1250 against 1572 at 256; in bfloat16
the batch wins up to 256), and enters the thread pool once instead of once a row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.engine.arrays import Ints
from services.engine.backends.interface import Heads
from services.engine.batch import Batch

_SHORT_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class Span:
    """One row's part of a step: its query tokens and the slots of its whole context."""

    first_token: int
    num_tokens: int
    slots: slice | Tensor
    mask: Tensor | None
    """[num_tokens, context], True where a query may look; None when `causal` or one token says it all."""
    causal: bool

    def attend(self, pool: Tensor, x: Tensor, out: Tensor, heads: Heads) -> None:
        """See `AttentionPlan.attend`."""
        h, kv, d = heads
        n = self.num_tokens
        tokens = slice(self.first_token, self.first_token + n)
        context = pool[self.slots] if isinstance(self.slots, slice) else pool.index_select(0, self.slots)
        k = context[:, :kv].transpose(0, 1).unsqueeze(0)
        v = context[:, kv:].transpose(0, 1).unsqueeze(0)
        if n == 1:  # the heads of one KV head as its queries: no head is repeated
            q = x[self.first_token, :h].view(1, kv, h // kv, d)
            out[tokens] = functional.scaled_dot_product_attention(q, k, v).view(1, h * d)
            return
        q = x[tokens, :h].transpose(0, 1).unsqueeze(0)
        attended = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=self.mask, is_causal=self.causal, enable_gqa=h != kv
        )
        out[tokens] = attended.squeeze(0).transpose(0, 1).reshape(n, h * d)


@dataclass(frozen=True, slots=True)
class ShortRows:
    """Decode rows with short contexts, padded to the longest with the pool's zeroed slot."""

    tokens: slice | Tensor
    slots: Tensor  # [num_rows * context]
    mask: Tensor  # [num_rows, 1, 1, context]: 0 where a query may look, else -inf

    def attend(self, pool: Tensor, x: Tensor, out: Tensor, heads: Heads) -> None:
        """See `AttentionPlan.attend`."""
        h, kv, d = heads
        n, context = self.mask.shape[0], self.mask.shape[3]
        gathered = pool.index_select(0, self.slots).view(n, context, 2 * kv, d).transpose(1, 2)
        q = x[self.tokens, :h].view(n, kv, h // kv, d)
        attended = functional.scaled_dot_product_attention(q, gathered[:, :kv], gathered[:, kv:], attn_mask=self.mask)
        out[self.tokens] = attended.reshape(n, h * d)


class AttentionPlan:
    """Made for each step by the backend, used by every layer."""

    def __init__(self, batch: Batch, table: Ints, padding_slot: int, dtype: torch.dtype) -> None:
        lens = batch.context_lens
        short = np.flatnonzero(lens <= _SHORT_CONTEXT).astype(np.int32)
        if len(short) < 2:
            short = short[:0]
        self._parts: list[Span | ShortRows] = []
        if len(short):
            self._parts.append(_short_rows(table[batch.decode_rows[short]], lens[short], short, padding_slot, dtype))
        for i in np.setdiff1d(np.arange(len(lens)), short).tolist():
            slots = run_or_index(table[batch.decode_rows[i], : lens[i]])
            self._parts.append(Span(i, 1, slots, None, causal=False))
        first = batch.num_decode_rows
        for chunk in batch.chunks:
            mask = _chunk_mask(chunk.start, chunk.length) if chunk.start and chunk.length > 1 else None
            slots = run_or_index(table[chunk.row, : chunk.end])
            self._parts.append(Span(first, chunk.length, slots, mask, causal=chunk.start == 0))
            first += chunk.length

    def attend(self, pool: Tensor, x: Tensor, heads: Heads) -> Tensor:
        """Attend every token to its row's context in one layer.

        pool: [num_slots + 1, 2 * num_kv_heads, head_dim]; x: roped, [num_tokens, num_heads + 2 * num_kv_heads,
        head_dim]. Returns [num_tokens, num_heads * head_dim].
        """
        out = x.new_empty(x.shape[0], heads.num_heads * heads.head_dim)
        for part in self._parts:
            part.attend(pool, x, out, heads)
        return out


def _short_rows(table: Ints, lens: Ints, tokens: Ints, padding_slot: int, dtype: torch.dtype) -> ShortRows:
    """table: [num_rows, width], the rows' own; lens: [num_rows]."""
    context = int(lens.max())
    outside = np.arange(context) >= lens[:, None]
    slots = np.where(outside, padding_slot, table[:, :context])  # what lies beyond may be anything, NaN included
    mask = torch.zeros(outside.shape, dtype=dtype).masked_fill_(torch.from_numpy(outside), -torch.inf)
    return ShortRows(run_or_index(tokens), torch.from_numpy(slots.reshape(-1)).long(), mask[:, None, None])


def run_or_index(slots: Ints) -> slice | Tensor:
    """One run of slots as a slice (a view of the pool), any others as an index."""
    n = len(slots)
    first = int(slots[0])
    if int(slots[-1]) - first == n - 1 and bool(np.all(slots[1:] - slots[:-1] == 1)):
        return slice(first, first + n)
    return torch.from_numpy(slots).long()


def _chunk_mask(start: int, length: int) -> Tensor:
    """Causal mask of a chunk behind `start` earlier tokens: [length, start + length], True where visible."""
    return torch.ones(length, start + length, dtype=torch.bool).tril_(start)
