"""Short prefills as CUDA graphs by number of tokens: launched one by one, 300 kernels cost more than they compute.

A graph's arrays come behind the decode rows in the staging block, in sizes that depend on its shape alone, so they
always lie where the capture found them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from services.engine.backends.cuda.chunks import PaddedShape, stage_chunks, stage_padded
from services.engine.backends.cuda.clock import captured
from services.engine.backends.cuda.prefill_step import PrefillBatch, PrefillStep
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch

log = logging.getLogger(__name__)

SHAPES = tuple(PaddedShape(*shape) for shape in ((64, 8), (128, 8), (256, 8), (512, 8), (512, 64)))
"""The first that holds a batch is taken; room for many chunks costs a step of few about 1%."""
_LAUNCHED_TOKENS = 1024
"""Of the smallest step that is run beforehand, of those that are larger than any graph; then twice as many, and so
on."""
_MOST_LAUNCHED_TOKENS = 8192
"""The largest takes a fifth of a second on an H200; attention of larger ones would take as long as the rest."""
_EQUAL_PROMPTS = (1, 2, 4, 8)
"""As many prompts of one length that fill a step attend through cuDNN. One is the rule for prompts longer than a step:
their first chunk."""


class PrefillGraphs:
    """Owned by the backend. A step is `stage`, right behind the decode rows, then `launch` once it is copied."""

    def __init__(self, step: PrefillStep, table: DeviceTable, staging: Staging, block_queries: int) -> None:
        self._step, self._table, self._staging, self._block_queries = step, table, staging, block_queries
        self._graphs: dict[PaddedShape, Callable[[], object]] = {}
        self._logits: dict[PaddedShape, Tensor] = {}
        self._kept: dict[PaddedShape, PrefillBatch] = {}
        self._chosen: PaddedShape | None = None

    def capture(self, begin: Callable[[], object], device: torch.device) -> None:
        """`begin` starts a step in the staging block and packs no decode rows."""
        began = time.monotonic()
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        for shape in reversed(SHAPES):
            batch = self._kept[shape] = self._padding(shape, begin)
            self._graphs[shape] = captured(self._launches(shape, batch), device, memory)
        log.info("prefill graphs for up to %s tokens, chunks: %.1f s", SHAPES, time.monotonic() - began)

    def warm(self, begin: Callable[[], object], chunk_tokens: int) -> None:
        """Run steps of padding that are too large for a graph, up to `chunk_tokens`: cuBLAS loads its kernels, torch
        takes memory, and cuDNN plans what it is to attend to."""
        began, largest = time.monotonic(), SHAPES[-1]
        if chunk_tokens <= largest.num_tokens:
            return
        self._step.plan([(n, chunk_tokens // n) for n in _EQUAL_PROMPTS if chunk_tokens % n == 0])
        sizes = [min(chunk_tokens, _MOST_LAUNCHED_TOKENS)]
        while sizes[-1] >= 2 * _LAUNCHED_TOKENS:
            sizes.append(sizes[-1] // 2)
        for num_tokens, num_chunks in (
            *((size, SHAPES[0].num_chunks) for size in sizes),
            (sizes[-1], largest.num_chunks),
        ):
            self._step(self._padding(PaddedShape(num_tokens, num_chunks), begin))
        log.info("steps of up to %d prompt tokens: %.1f s", chunk_tokens, time.monotonic() - began)

    def stage(self, batch: Batch) -> PrefillBatch:
        """Pack a batch's chunks, padded where a graph takes them."""
        num_tokens, num_chunks = batch.num_prefill_tokens, len(batch.chunks)
        fits = (each for each in SHAPES if num_tokens <= each.num_tokens and num_chunks <= each.num_chunks)
        self._chosen = None if batch.scored else next(fits, None)
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

    def _padding(self, shape: PaddedShape, begin: Callable[[], object]) -> PrefillBatch:
        begin()
        batch = stage_padded(None, shape, self._table, self._staging, self._block_queries)
        self._staging.send()
        return batch

    def _launches(self, shape: PaddedShape, batch: PrefillBatch) -> Callable[[], None]:
        def launches() -> None:
            self._logits[shape] = self._step(batch)

        return launches
