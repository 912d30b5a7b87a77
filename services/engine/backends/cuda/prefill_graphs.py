"""Prefills: short ones as CUDA graphs by number of tokens, since 300 kernels launched one by one cost more than they
compute, and long ones kernel by kernel.

    short    pack all ─ send ─ table ─ graph
    long     pack ids ─ send ─ first product ─ pack the rest ─ send ─ table ─ all else

A graph's arrays come first in the staging block, in sizes that depend on its shape alone, so they always lie where the
capture found them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from services.engine.arrays import Ints
from services.engine.backends.cuda.chunks import chunk_ids, stage_chunks
from services.engine.backends.cuda.clock import captured
from services.engine.backends.cuda.padded_chunks import PaddedChunks, PaddedShape, sizes_beforehand
from services.engine.backends.cuda.prefill_step import PrefillBatch, PrefillStep
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch

log = logging.getLogger(__name__)

SHAPES = tuple(PaddedShape(*shape) for shape in ((64, 8), (128, 8), (256, 8), (512, 8), (512, 64)))
"""The first that holds a batch is taken; room for many chunks costs a step of few about 1%."""
_LAUNCHED_TOKENS = 1024
"""Of the smallest step that is run beforehand, of those that are larger than any graph."""
_EQUAL_PROMPTS = (1, 2, 4, 8)
"""As many prompts of one length that fill a step attend through cuDNN. One is the rule for prompts longer than a step:
their first chunk."""


class PrefillGraphs:
    """Owned by the backend, whose staging is for prompts alone."""

    def __init__(self, step: PrefillStep, table: DeviceTable, staging: Staging, block_queries: int) -> None:
        self._step, self._table, self._staging, self._block_queries = step, table, staging, block_queries
        self._graphs: dict[PaddedShape, Callable[[], object]] = {}
        self._logits: dict[PaddedShape, Tensor] = {}
        self._padded: dict[PaddedShape, PaddedChunks] = {}

    def capture(self, device: torch.device) -> None:
        """Make the graphs."""
        began = time.monotonic()
        memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        for shape in reversed(SHAPES):
            padded = self._padded[shape] = PaddedChunks(shape, self._table, self._block_queries)
            batch = padded.send_padding(self._staging)
            self._graphs[shape] = captured(self._launches(shape, batch), device, memory)
        log.info("prefill graphs for up to %s tokens, chunks: %.1f s", SHAPES, time.monotonic() - began)

    def warm(self, chunk_tokens: int) -> None:
        """Run steps of padding that are too large for a graph, up to `chunk_tokens`: cuBLAS loads its kernels, torch
        takes memory, and cuDNN plans what it is to attend to."""
        began, largest = time.monotonic(), SHAPES[-1]
        if chunk_tokens <= largest.num_tokens:
            return
        self._step.plan([(n, chunk_tokens // n) for n in _EQUAL_PROMPTS if chunk_tokens % n == 0])
        sizes = sizes_beforehand(chunk_tokens, _LAUNCHED_TOKENS)
        for num_tokens, num_chunks in (
            *((size, SHAPES[0].num_chunks) for size in sizes),
            (sizes[-1], largest.num_chunks),
        ):
            shape = PaddedShape(num_tokens, num_chunks)
            self._step(PaddedChunks(shape, self._table, self._block_queries).send_padding(self._staging))
        log.info("steps of up to %d prompt tokens: %.1f s", chunk_tokens, time.monotonic() - began)

    def launch(self, batch: Batch, writes: Ints) -> tuple[Tensor, Tensor | None]:
        """Compute a batch's chunks, once `writes` are in the slot table, as of `Rows.take_writes`.

        Return logits, a row for each chunk that ends its prompt and perhaps more, and the final states of the scored
        tokens, where there are any.
        """
        num_tokens, num_chunks = batch.num_prefill_tokens, len(batch.chunks)
        fits = (each for each in SHAPES if num_tokens <= each.num_tokens and num_chunks <= each.num_chunks)
        shape = None if batch.scored else next(fits, None)
        self._staging.begin()
        return self._launch_long(batch, writes) if shape is None else self._launch_graph(batch, shape, writes)

    def _launch_graph(self, batch: Batch, shape: PaddedShape, writes: Ints) -> tuple[Tensor, None]:
        self._padded[shape].stage(batch, self._staging)
        self._table.send(writes, self._staging)
        self._graphs[shape]()
        return self._logits[shape], None

    def _launch_long(self, batch: Batch, writes: Ints) -> tuple[Tensor, Tensor | None]:
        ids = self._staging.put(chunk_ids(batch))
        self._staging.send()
        begun = self._step.begin(ids)
        staged = stage_chunks(batch, ids, self._table, self._staging, self._block_queries)
        self._table.send(writes, self._staging)
        states, n = self._step.final_states(staged, begun), staged.logits_tokens.numel()
        return self._step.logits(states[:n]), None if staged.scored is None else states[n:]

    def logits(self, states: Tensor) -> Tensor:
        """As `PrefillStep.logits`."""
        return self._step.logits(states)

    def _launches(self, shape: PaddedShape, batch: PrefillBatch) -> Callable[[], None]:
        def launches() -> None:
            self._logits[shape] = self._step(batch)

        return launches
