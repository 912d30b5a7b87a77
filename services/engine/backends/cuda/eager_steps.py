"""Steps of a `GenericDecoder`: the same seams as the graphs of our own families, launched kernel by kernel.

Decode rows are chunks of one token, so that one attention kernel serves both, straight from the slot table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.argmax import ArgmaxScratch, argmax
from kernels.indexed import publish_ids
from kernels.layout import Heads, SlotTable
from kernels.prefill_attention import PrefillTuning, prefill_attention
from services.engine.arrays import Ints
from services.engine.backends.cuda.chunks import chunk_ids, stage_chunks
from services.engine.backends.cuda.padded_chunks import PaddedChunks, PaddedShape, sizes_beforehand
from services.engine.backends.cuda.prefill_step import PrefillBatch
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch
from services.engine.models.generic import GenericDecoder

_CHUNKS = 8
"""Of a step of padding."""


class EagerStep:
    """Computes chunks through the decoder's own modules, on the compute stream."""

    def __init__(self, decoder: GenericDecoder, heads: Heads, pool: Tensor, tuning: PrefillTuning) -> None:
        self._decoder, self._heads, self._pool, self._tuning = decoder, heads, pool, tuning

    def states(self, batch: PrefillBatch) -> Tensor:
        """Write the chunks' K and V; return hidden states `[n, hidden]` of `logits_tokens`, then of `scored`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
            pool = self._pool[layer]
            pool.index_copy_(0, batch.slots.long(), torch.cat((k, v), dim=1))
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            prefill_attention(
                q.reshape(len(q), -1), pool, batch.table, batch.tiles, batch.query_start, batch.context_lens,
                self._heads, out.view(len(q), -1), scale=scale, tuning=self._tuning,
            )  # fmt: skip
            return out

        wanted = batch.logits_tokens.long()
        if batch.scored is not None:
            wanted = torch.cat((wanted, batch.scored.long()))
        return self._decoder.hidden(batch.ids.long(), batch.positions.long(), wanted, attend)

    def logits(self, states: Tensor) -> Tensor:
        """`[n, hidden]` -> `[n, vocab]`."""
        return self._decoder.head(states)


class EagerPrefill:
    """As `PrefillGraphs` is used."""

    def __init__(self, step: EagerStep, table: DeviceTable, staging: Staging, block_queries: int) -> None:
        self._step, self._table, self._staging, self._block_queries = step, table, staging, block_queries

    def warm(self, chunk_tokens: int) -> None:
        """Run steps of padding of up to `chunk_tokens`."""
        for num_tokens in sizes_beforehand(chunk_tokens):
            chunks = PaddedChunks(PaddedShape(num_tokens, _CHUNKS), self._table, self._block_queries)
            self._step.logits(self._step.states(chunks.send_padding(self._staging)))

    def launch(self, batch: Batch, writes: Ints) -> tuple[Tensor, Tensor | None]:
        """As of `PrefillGraphs`."""
        self._staging.begin()
        ids = self._staging.put(chunk_ids(batch))
        chunks = stage_chunks(batch, ids, self._table, self._staging, self._block_queries)
        self._table.send(writes, self._staging)
        states, n = self._step.states(chunks), chunks.logits_tokens.numel()
        return self._step.logits(states[:n]), None if chunks.scored is None else states[n:]

    def logits(self, states: Tensor) -> Tensor:
        """As `EagerStep.logits`."""
        return self._step.logits(states)


class EagerDecode:
    """As `DecodeGraphs` is used: `logits` and `sampled` are of the rows launched last."""

    def __init__(
        self, step: EagerStep, table: DeviceTable, rows: Tensor, context_lens: Tensor, host_block: Tensor, vocab: int,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """`rows`, `context_lens`, `host_block`: as of `DecodeGraphs`."""
        max_rows, device = len(rows), rows.device
        self.logits = torch.zeros(max_rows, vocab, dtype=dtype, device=device)
        self.sampled = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._step, self._table, self._rows, self._lens = step, table, rows, context_lens
        self._host_block = host_block
        self._scratch = ArgmaxScratch.allocate(max_rows, device)
        self._numbers = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self._tiles = torch.stack((self._numbers, torch.zeros_like(self._numbers)), dim=1)

    def warm(self) -> None:
        """Run steps of rows whose inputs have been copied, those of padding, up to all there are."""
        for num_rows in sizes_beforehand(len(self._rows)):
            self.launch(num_rows)

    def launch(self, num_rows: int) -> None:
        """Launch a step of `num_rows` rows, whose inputs have been copied."""
        rows, lens = self._rows[:num_rows], self._lens[:num_rows]
        table, index, positions = self._table.table, rows.long(), lens - 1
        batch = PrefillBatch(
            ids=self._table.next_ids[index],
            positions=positions,
            slots=table[index, positions.long()],
            query_start=self._numbers[: num_rows + 1],
            context_lens=lens,
            tiles=self._tiles[:num_rows],
            last_tiles=self._tiles[:num_rows],
            table=SlotTable(table, rows),
            logits_tokens=self._numbers[:num_rows],
            whole=None,
        )
        self.logits[:num_rows] = self._step.logits(self._step.states(batch))
        sampled = self.sampled[:num_rows]
        argmax(self.logits[:num_rows], sampled, self._scratch)
        publish_ids(sampled, rows, self._table.next_ids, self._host_block)
