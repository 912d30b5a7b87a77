"""The cuda backend: a step is one copy and one graph for its decode rows, then copies and launches for its chunks.

    host      pack rows, lengths, draws, table writes ─ launch ─ pack chunks ─ launch ─ read the results before
    device    ... the step before ...     copy ─ table ─ decode graph ─ copy ─ prefill ─ draws

Sampled ids stay on the device as the rows' next inputs. The kernel that puts them there stores them into a pinned block
too, whose address is sent before; the host reads it one step late. On an idle device a prompt's first token waits for
the host twice, before the first launch and behind the ids: what can be packed behind the first launches is. Everything
but gathers into transfer pages is launched on one stream, so slots and rows may be used again as soon as the host has
given them back; a gather runs beside the next step, and `end_gathers` is for slots that are given back under it.

Where rows have grammars, their draws wait for masks that the host makes of the ids before (`row_masks`). It is the
device that waits: they are launched with all else.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels import pages
from kernels.indexed import publish_ids
from kernels.launch import INTERPRETED, is_hopper
from kernels.layout import Heads as KernelHeads
from kernels.layout import Rope
from kernels.prefill_attention import PrefillTuning
from services.engine.arrays import Indexes, Ints
from services.engine.backends.cuda.clock import Mark, SideStream, download, upload
from services.engine.backends.cuda.decode_graphs import DecodeGraphs
from services.engine.backends.cuda.eager_steps import EagerDecode, EagerPrefill, EagerStep
from services.engine.backends.cuda.host_pages import PinnedPages
from services.engine.backends.cuda.prefill_graphs import PrefillGraphs
from services.engine.backends.cuda.prefill_step import PrefillStep
from services.engine.backends.cuda.rank_sums import open_rank_sums
from services.engine.backends.cuda.recipe import recipe_for
from services.engine.backends.cuda.result import DeviceResult, HostIds, Outputs, Waiting
from services.engine.backends.cuda.row_draws import RowDraws
from services.engine.backends.cuda.row_masks import MaskBlocks
from services.engine.backends.cuda.sampler import Draws, Logprobs, launch_draws, stage_draws
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.backends.cuda.warm_up import warm_pages, warm_sampling, warm_table
from services.engine.backends.interface import Heads
from services.engine.batch import Batch
from services.engine.matcher import Drawn
from services.engine.models.generic import GenericDecoder
from services.engine.models.layers import Decoder
from services.engine.prompt_scoring import ChunkScores, score
from services.engine.ranks import Ranks
from services.engine.rows import NO_WRITES, Rows
from services.engine.runner import Copy
from services.engine.transfer.heads import HeadRange

log = logging.getLogger(__name__)

_STAGING_INTS = 1 << 20
"""Room for a step's arrays, of its rows and of its prompts: 4 MiB each; what is beyond is copied apart."""
_SMALL_TILES = PrefillTuning(block_queries=64, block_keys=32, stages=2, warps=4)
"""Where rows of K and V take more than 256 bytes: larger ones do not fit into shared memory."""
_WIDEST_FOR_LARGE_TILES = 128


class _Part(NamedTuple):
    """Tokens of a step that are drawn together."""

    drawn: Drawn
    mark: Mark
    """Behind what stores them into the host's memory."""
    draws: Draws | None
    """Beyond the argmax."""
    logprobs: Logprobs | None


class CudaRunner:
    """A Runner that is its own Device. Owned by the engine's loop."""

    name = "cuda"
    pipeline_depth = 1

    def __init__(
        self, decoder: Decoder | GenericDecoder, pool: Tensor, rows: Rows, heads: Heads, rope: tuple[Tensor, Tensor],
        ranks: Ranks, chunk_tokens: int,
    ) -> None:  # fmt: skip
        """Capture the graphs of our own families. `rope`: tables as `models.rope.rope_tables` makes them, float32;
        `chunk_tokens`: most prompt tokens of a step."""
        self.device = pool.device
        self.pool = pool.zero_()  # kernels read beyond a context's end: what is there counts for nothing, but is finite
        self.waiting = Waiting()
        self._heads = KernelHeads(*heads)
        half = heads.head_dim // 2
        cos, sin = (table[:, half:].contiguous().to(self.device) for table in rope)  # the halves whose sign is plus
        self._rope = Rope(cos, sin)
        self._max_rows = len(rows.length)
        self._table = DeviceTable(rows, pool.shape[1] - 1, self.device)
        self._staging = Staging(3 * self._max_rows + _STAGING_INTS, self.device)
        self._prompt_staging = Staging(_STAGING_INTS, self.device)
        self._packed: Ints = np.zeros((3, -(-self._max_rows // 32) * 32), np.int32)
        """What the graphs read of a step: rows, lengths, the address of the block that its ids go to."""
        self._host_ids, self._first_ids = (HostIds(self._max_rows, self.device) for _ in range(2))
        packed = self._stage_no_rows()
        self._rows, self._lens = packed[:2, : self._max_rows]
        self._host_block = packed[2].view(torch.int64)[:1]
        self._ranks = ranks
        self._vocab = decoder.vocab_size
        self._masks = MaskBlocks(self._max_rows, self._vocab, self.device)
        self._row_draws = RowDraws(self._max_rows, self._vocab, self._masks, self.device)
        self._gathers = SideStream(self.device, is_urgent=True)
        self._last_gather = Mark(self.device)
        self._prefill: PrefillGraphs | EagerPrefill
        self._graphs: DecodeGraphs | EagerDecode
        if isinstance(decoder, GenericDecoder):
            self._open_eager(decoder, chunk_tokens)
        else:
            self._capture(decoder, chunk_tokens)
        if not INTERPRETED:
            self._warm_up()

    @property
    def backend(self) -> CudaRunner:
        """See Runner."""
        return self

    def launch(self, batch: Batch) -> DeviceResult:
        """See Runner."""
        if batch.chunks:  # their launches take memory and load code, for which the driver may wait for the device
            self._masks.settle()
        draws = self._launch_rows(batch) if batch.num_decode_rows else None
        return DeviceResult(self._launch_rest(batch, draws), self.waiting)

    def set_next_ids(self, rows: list[int], ids: list[int]) -> None:
        """See Runner."""
        self._table.give_ids(rows, ids)

    def gather(self, slots: Ints, page: Tensor, first_head: int, after: Copy) -> Mark:
        """See Device."""
        assert isinstance(after, Mark)
        index = torch.from_numpy(slots)
        self._last_gather = self._gathers.launch(
            lambda: pages.gather_page(self.pool, upload(index, self.device), page, first_head), after
        )
        return self._last_gather

    def end_gathers(self) -> None:
        """See Device."""
        self._last_gather.hold()

    def scatter(self, page: Tensor, slots: Ints, first_head: int = 0) -> Mark:
        """See Device."""
        pages.scatter_page(page, upload(torch.from_numpy(slots), self.device), self.pool, first_head)
        return Mark(self.device)

    def host_pages(self, num_pages: int, page_tokens: int) -> PinnedPages:
        """See Device."""
        return PinnedPages(self.pool, num_pages, page_tokens)

    def _open_eager(self, decoder: GenericDecoder, chunk_tokens: int) -> None:
        """Nothing is captured: what a model's own modules do on the way may not be repeatable."""
        small = self.pool.dtype == torch.float32 or self._heads.head_dim > _WIDEST_FOR_LARGE_TILES
        tuning = _SMALL_TILES if small else PrefillTuning()
        log.info("decode and prompts: attention Triton over slots, all else the model's own modules, no graphs")
        step = EagerStep(decoder, self._heads, self.pool, tuning)
        self._prefill = prefill = EagerPrefill(step, self._table, self._prompt_staging, tuning.block_queries)
        self._graphs = decode = EagerDecode(
            step, self._table, self._rows, self._lens, self._host_block, self._vocab, self.pool.dtype
        )
        if not INTERPRETED:
            self._warm_eager(prefill, decode, chunk_tokens)

    def _warm_eager(self, prefill: EagerPrefill, decode: EagerDecode, chunk_tokens: int) -> None:
        """Attention and argmax are compiled, the model's own modules load their kernels, and torch takes memory."""
        began, n = time.monotonic(), self._max_rows
        prefill.warm(chunk_tokens)
        # Of one token each: at the position before the first, a model's table of positions would have no entry.
        rows, lens = np.full(n, self._table.padding_row, np.intp), np.ones(n, np.int32)
        self._stage_rows(rows, lens, self._host_ids.take(n))
        self._staging.send()
        decode.warm()
        Mark(self.device).wait()
        log.info("attention, argmax and the model's own modules, up to %d prompt tokens or %d rows: %.1f s",
                 chunk_tokens, n, time.monotonic() - began)  # fmt: skip

    def _capture(self, decoder: Decoder, chunk_tokens: int) -> None:
        sums = open_rank_sums(self._ranks, decoder.embedding.shape[1], self._max_rows, self.pool.dtype, self.device)
        half, hopper = self.pool.dtype in {torch.bfloat16, torch.float16}, is_hopper()
        tuning = PrefillTuning() if half else _SMALL_TILES
        recipe_of = partial(recipe_for, num_kv_heads=self._heads.num_kv_heads, dtype=self.pool.dtype,
                            hopper=hopper, num_ranks=self._ranks.count)  # fmt: skip
        log.info(
            "decode: Triton split-KV attention, products %s; prompts: attention Triton, cuDNN where prompts of equal "
            "length fill a step, products cuBLAS%s", "Triton up to 64 rows, cuBLAS above" if half else "cuBLAS",
            ", from 1024 tokens on the MLP's first with its activation Triton" if half and hopper else "",
        )  # fmt: skip
        prefill = PrefillStep(decoder, self._heads, self._rope, self.pool, tuning, sums, one_kernel=half and hopper)
        graphs = PrefillGraphs(prefill, self._table, self._prompt_staging, tuning.block_queries)
        graphs.capture(self.device)
        if not INTERPRETED:
            graphs.warm(chunk_tokens)
        self._prefill = graphs
        self._stage_no_rows()
        self._staging.send()
        self._graphs = DecodeGraphs(
            decoder, self._heads, self._rope, self.pool, self._table, self._rows, self._lens, self._host_block,
            recipe_of, sums,
        )  # fmt: skip

    def _warm_up(self) -> None:
        began = time.monotonic()
        warm_table(self._table, self._staging)
        warm_sampling(self._vocab, self._graphs.logits.dtype, self._staging, self._masks, self.device)
        heads = self._heads_of_pages()
        warm_pages(self.pool, self._table.padding_slot, heads)
        self._stage_no_rows()
        self._staging.send()
        self._publish(1)
        Mark(self.device).wait()
        log.info("kernels of sampling, and of pages of %s KV heads: %.1f s", heads, time.monotonic() - began)

    def _heads_of_pages(self) -> list[int]:
        """KV heads that a page may hold. A model's own modules run on one rank, and so they do at its peers."""
        own, ranks = self._heads.num_kv_heads, self._ranks
        if isinstance(self._graphs, EagerDecode):
            return [own]
        return HeadRange.of_rank(own * ranks.count, ranks.rank, ranks.count).shares(own * ranks.count)

    def _stage_no_rows(self) -> Tensor:
        """For launches whose ids nobody reads."""
        return self._stage_rows(np.empty(0, np.intp), np.empty(0, np.int32), self._host_ids.take(self._max_rows))

    def _stage_rows(self, decode_rows: Indexes, context_lens: Ints, block: Tensor) -> Tensor:
        """Pack what the graphs read, first of all, so that it always lies at the same addresses."""
        n, (rows, lens, address) = len(decode_rows), self._packed
        rows[:n], rows[n:] = decode_rows, self._table.padding_row
        lens[:n], lens[n:] = context_lens, 0
        address[:2].view(np.int64)[0] = block.data_ptr()
        self._staging.begin()
        return self._staging.put(self._packed)

    def _launch_rows(self, batch: Batch) -> Draws | None:
        """Launch the graph of a step's decode rows; return how they are drawn beyond the argmax."""
        n, staging = batch.num_decode_rows, self._staging
        self._stage_rows(batch.decode_rows, batch.context_lens, self._host_ids.take(n))
        draws = self._row_draws.stage(batch, staging)
        self._table.send(batch.table_writes, staging)
        self._graphs.launch(n)
        return draws

    def _launch_rest(self, batch: Batch, draws: Draws | None) -> Outputs:
        """All of a step behind its decode graph. Prompts come first: nothing is launched behind a hold for masks that
        takes memory or loads code."""
        n, parts = batch.num_decode_rows, []
        scores: list[ChunkScores] = []
        if batch.chunks:
            logits, states = self._prefill.launch(batch, NO_WRITES if n else batch.table_writes)
            if batch.first_samples:
                parts.append(self._draw_first(batch, logits))
            scores = self._score(batch, states)
        if n:
            parts.insert(0, self._draw_rows(n, draws))
        return Outputs(
            [each.drawn for each in parts],
            [masks for each in parts if each.draws is not None for masks in each.draws.masks],
            [each.logprobs for each in parts if each.logprobs is not None],
            scores, parts[0].mark if n else Mark(self.device),
        )  # fmt: skip

    def _draw_rows(self, n: int, draws: Draws | None) -> _Part:
        """The decode graph has drawn and sent the argmax; what else is asked for follows."""
        logprobs = None
        if draws is not None:
            logprobs = launch_draws(draws, self._whole(self._graphs.logits[:n]), self._graphs.sampled)
            self._publish(n)
        drawn, mark = self._host_ids.launched(n)
        if draws is not None:
            draws.drawn(self._graphs.sampled, drawn)
        return _Part(drawn, mark, draws, logprobs)

    def _publish(self, n: int) -> None:
        publish_ids(self._graphs.sampled[:n], self._rows[:n], self._table.next_ids, self._host_block)

    def _score(self, batch: Batch, states: Tensor | None) -> list[ChunkScores]:
        """`states`: of all scored tokens, one chunk's after the other's."""
        if states is None:
            return []
        parts = states.split([len(each.targets) for each in batch.scored])

        def logits_of(rows: Tensor) -> Tensor:
            return self._whole(self._prefill.logits(rows))

        return [
            score(each, part, logits_of, self._vocab, download) for each, part in zip(batch.scored, parts, strict=True)
        ]

    def _draw_first(self, batch: Batch, logits: Tensor) -> _Part:
        """Draw the tokens that end prompts. How is packed behind the prompts' launches: the device has long to compute,
        and would else wait for it."""
        samples, staging, n = batch.first_samples, self._prompt_staging, len(batch.first_samples)
        # The padding row where nothing is decoded here.
        rows = [self._table.padding_row if (row := s.sequence.row) is None else row for s in samples]
        address = np.array([self._first_ids.take(n).data_ptr()], np.int64)
        index = staging.put(np.array(rows, np.int32))
        block = staging.put(address.view(np.int32)).view(torch.int64)
        draws = stage_draws(samples, batch.num_decode_rows, self._vocab, staging, self._masks, self.device)
        staging.send()
        assert draws is not None
        ids = torch.empty(n, dtype=torch.int32, device=self.device)
        logprobs = launch_draws(draws, self._whole(logits), ids)
        publish_ids(ids, index, self._table.next_ids, block)
        drawn, mark = self._first_ids.launched(n)
        draws.drawn(ids, drawn)
        return _Part(drawn, mark, draws, logprobs)

    def _whole(self, logits: Tensor) -> Tensor:
        """The logits of the whole vocabulary, where each rank has some."""
        return logits if logits.shape[1] == self._vocab else self._ranks.gather_columns(logits)
