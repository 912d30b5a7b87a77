"""Short prefills as CUDA graphs by number of tokens: launched one by one, 300 kernels cost more than they compute.

A graph's arrays come behind the decode rows in the staging block, in sizes that depend on its tokens alone, so they
always lie where the capture found them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from services.engine.backends.cuda.chunks import MAX_CHUNKS, stage_chunks, stage_padded
from services.engine.backends.cuda.clock import captured
from services.engine.backends.cuda.prefill_step import PrefillBatch, PrefillStep
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch

log = logging.getLogger(__name__)

NUM_TOKENS = (64, 128, 256, 512)


class PrefillGraphs:
    """Owned by the backend. A step is `stage`, right behind the decode rows, then `launch` once it is copied."""

    def __init__(self, step: PrefillStep, table: DeviceTable, staging: Staging, block_queries: int) -> None:
        self._step, self._table, self._staging, self._block_queries = step, table, staging, block_queries
        self._graphs: dict[int, Callable[[], object]] = {}
        self._logits: dict[int, Tensor] = {}
        self._kept: dict[int, PrefillBatch] = {}
        self._chosen: int | None = None

    def capture(self, begin: Callable[[], object], device: torch.device) -> None:
        """`begin` starts a step in the staging block and packs no decode rows."""
        began = time.monotonic()
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        for num_tokens in reversed(NUM_TOKENS):
            begin()
            batch = stage_padded(None, num_tokens, self._table, self._staging, self._block_queries)
            self._staging.send()
            self._kept[num_tokens] = batch
            self._graphs[num_tokens] = captured(self._launches(num_tokens, batch), device, memory)
        log.info("prefill graphs for up to %s tokens, %.1f s", NUM_TOKENS, time.monotonic() - began)

    def stage(self, batch: Batch) -> PrefillBatch:
        """Pack a batch's chunks, padded where a graph takes them."""
        fits = [n for n in NUM_TOKENS if n >= batch.num_prefill_tokens and not batch.scored]
        self._chosen = fits[0] if fits and len(batch.chunks) <= MAX_CHUNKS else None
        if self._chosen is None:
            return stage_chunks(batch, self._table, self._staging, self._block_queries)
        staged = stage_padded(batch, self._chosen, self._table, self._staging, self._block_queries)
        assert staged.logits_tokens.data_ptr() == self._kept[self._chosen].logits_tokens.data_ptr()
        return staged

    def launch(self, chunks: PrefillBatch) -> tuple[Tensor, Tensor | None]:
        """Compute what was staged last. Return logits, a row for each chunk that ends its prompt and perhaps more, and
        the final states of the scored tokens, where there are any."""
        if self._chosen is None and chunks.scored is not None:
            states, n = self._step.final_states(chunks), chunks.logits_tokens.numel()
            return self._step.logits(states[:n]), states[n:]
        if self._chosen is None:
            return self._step(chunks), None
        self._graphs[self._chosen]()
        return self._logits[self._chosen], None

    def logits(self, states: Tensor) -> Tensor:
        """As `PrefillStep.logits`."""
        return self._step.logits(states)

    def _launches(self, num_tokens: int, batch: PrefillBatch) -> Callable[[], None]:
        def launches() -> None:
            self._logits[num_tokens] = self._step(batch)

        return launches
