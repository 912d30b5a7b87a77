"""What no graph holds, run once before the first request.

A kernel is compiled, or its code loaded, where it is first launched: 50 ms to a second, in which every stream of the
engine would stand still.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import torch
from torch import Tensor

from kernels.masks import rule_out
from kernels.pages import gather_page, scatter_page
from services.common import ipc
from services.common.request import LengthPenalty, PromptPenalty, SamplingParams
from services.engine.backends.cuda.clock import download
from services.engine.backends.cuda.row_masks import MaskBlocks
from services.engine.backends.cuda.sampler import launch_draws, stage_draws
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Sample, Scored
from services.engine.jobs import Job, JobState, Sequence
from services.engine.matcher import Drawn
from services.engine.prompt_scoring import score
from services.engine.rows import NO_WRITES

_PENALIZED = SamplingParams(repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1)
_WAYS = (
    SamplingParams(top_k=4, top_p=0.9, min_p=0.1),
    _PENALIZED,
    msgspec.structs.replace(_PENALIZED, prompt_penalty=PromptPenalty.ALL),
    SamplingParams(length_penalty=LengthPenalty(0, 1.1), logit_bias={0: 1.0}, allowed_token_ids=(0, 1, 2)),
    SamplingParams(temperature=0.0, num_logprobs=2, bad_sequences=((0,), (1, 0))),
)
"""Among them whatever launches something of its own."""
_NUM_TOKENS = 4


def warm_sampling(
    vocab_size: int, dtype: torch.dtype, staging: Staging, blocks: MaskBlocks, device: torch.device
) -> None:  # fmt: skip
    """Draw from logits of zeros `[n, vocab_size]` of `dtype` in all ways, and score a prompt."""
    logits = torch.zeros(len(_WAYS), vocab_size, dtype=dtype, device=device)
    staging.begin()
    # The first has no edits and is drawn from the logits themselves.
    samples = [Sample(_sequence(way, _NUM_TOKENS * (row > 0)), row, position=1) for row, way in enumerate(_WAYS)]
    draws = stage_draws(samples, 0, vocab_size, staging, blocks, device)
    staging.send()
    assert draws is not None
    assert draws.direct is not None
    assert draws.edited is not None
    ids = torch.empty(len(_WAYS), dtype=torch.int32, device=device)
    launch_draws(draws, logits, ids)
    draws.drawn(ids, Drawn(np.zeros(len(_WAYS), np.int32)))
    for each in (logits, logits.float()):  # a grammar's row is drawn from the logits themselves, or from an edited copy
        words = torch.zeros(1, -(-vocab_size // 32), dtype=torch.int32, device=device)
        rule_out(each, torch.zeros(1, dtype=torch.int32, device=device), words)
    scored = Scored(samples[0].sequence.job, 1, slice(0, 2), np.zeros(2, np.int32), num_top=2)
    score(scored, logits[:2], lambda rows: rows, vocab_size, download)


def warm_pages(pool: Tensor, padding_slot: int, num_heads: Iterable[int]) -> None:
    """Copy the padding slot to a page and back, for pages of each number of KV heads: a page's width has code of its
    own."""
    slots = torch.full((1,), padding_slot, dtype=torch.int32, device=pool.device)
    for n in num_heads:
        page = pool.new_empty(len(pool), 1, 2 * n, pool.shape[3])
        gather_page(pool, slots, page)
        scatter_page(page, slots, pool)


def warm_table(table: DeviceTable, staging: Staging) -> None:
    """Write what padding reads, as it is."""
    table.give_ids([table.padding_row], [0])
    staging.begin()
    table.send(NO_WRITES, staging)


def _sequence(sampling: SamplingParams, min_new_tokens: int) -> Sequence:
    """Of a job that nobody asked for."""
    stop = ipc.EngineStop(max_new_tokens=_NUM_TOKENS, min_new_tokens=min_new_tokens, stop_token_ids=(0,))
    job = Job(
        job_id=0, key=ipc.AttemptKey("", 0), arrival=0.0, tokens=np.zeros(_NUM_TOKENS, np.int32),
        num_prompt_tokens=_NUM_TOKENS - 1, state=JobState.PREFILLING, holding=None, cached_tokens=0, sampling=sampling,
        stop=stop,
    )  # fmt: skip
    return Sequence(job, choice=0, outputs=[0])
