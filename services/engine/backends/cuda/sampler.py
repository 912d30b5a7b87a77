"""Sampling on the device. Plain greedy decode rows cost nothing here: the decode graph has their argmax.

Rows with a temperature or a grammar are drawn by one kernel straight from the logits, in which what grammars do not
allow has been ruled out. Rows that edit their logits (penalties, bias) or want log-probabilities are copied to float32
first. Nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import SamplingRows, sample
from services.common.request import SamplingParams, TokenLogprob
from services.engine.arrays import Ints
from services.engine.backends.cuda.clock import download
from services.engine.backends.cuda.row_masks import Guided, MaskBlocks, RowMasks
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Sample
from services.engine.matcher import Drawn
from services.engine.noise import Keys, noise_keys
from services.engine.sampling_rules import SequenceRules, rules_of


@dataclass(frozen=True, slots=True)
class Logprobs:
    """On their way to the host, of samples `index`: the chosen token's, and the likeliest ones' with their ids."""

    index: list[int]
    num_top: list[int]
    chosen: Tensor  # [n, 1] float32
    top: Tensor  # [n, k] float32
    top_ids: Tensor  # [n, k]

    def by_sample(self, ids: list[int]) -> dict[int, TokenLogprob]:
        """Sample -> log-probability; `ids` are the samples' tokens. The copies have been waited for."""
        chosen, top, top_ids = self.chosen[:, 0].tolist(), self.top.tolist(), self.top_ids.tolist()
        return {
            i: TokenLogprob(ids[i], chosen[j], list(zip(top_ids[j][:num], top[j][:num], strict=True)))
            for j, (i, num) in enumerate(zip(self.index, self.num_top, strict=True))
        }


class Draw(NamedTuple):
    """One token to draw."""

    rules: SequenceRules
    position: int
    """Among the sequence's outputs."""
    source: int
    """Row of the logits."""
    output: int


@dataclass(frozen=True, slots=True)
class Draws:
    """What one set of logits is sampled by, packed: `direct` from the logits, `edited` from copies of their rows."""

    direct: SamplingRows | None
    direct_masks: RowMasks | None
    edited: SamplingRows | None
    edited_masks: RowMasks | None
    edited_rows: Tensor | None
    edits: list[Draw]
    """Of each edited row."""
    first: int
    """The batch's sample that output 0 belongs to."""

    @property
    def masks(self) -> list[RowMasks]:
        """Of all rows under grammars."""
        return [each for each in (self.direct_masks, self.edited_masks) if each is not None]

    def drawn(self, ids: Tensor, host: Drawn) -> None:
        """The tokens have been drawn into `ids`, which are on their way to the host."""
        for draw in self.edits:
            draw.rules.drawn(ids, draw.output)
        for masks in self.masks:
            masks.guided.drawn(host)


FIELDS = 4
"""Lines of `fields_of`."""


def stage_draws(
    samples: list[Sample], first: int, vocab: int, staging: Staging, blocks: MaskBlocks, device: torch.device
) -> Draws | None:  # fmt: skip
    """Pack what `samples` need; sample i draws output i.

    Their logits are a matrix of their own, whose row 0 is row `first` of the batch's.
    """
    if not samples:
        return None
    direct: list[Draw] = []
    edits: list[Draw] = []
    for i, one in enumerate(samples):
        rules = rules_of(one.sequence, vocab, device)
        edited = rules.edits(one.position) or rules.params.num_logprobs is not None
        (edits if edited else direct).append(Draw(rules, one.position, one.logits_row - first, i))
    drawn = None
    if direct:
        sources, targets = (
            np.array(each, np.int32) for each in zip(*((d.source, d.output) for d in direct), strict=True)
        )
        drawn = pack_rows(
            fields_of([each.rules.params for each in direct]), _keys_of(direct), sources, targets, staging
        )
    return packed_draws(drawn, guided_by(direct), edits, first, staging, blocks)


def packed_draws(
    direct: SamplingRows | None, guided: Guided | None, edits: list[Draw], first: int, staging: Staging,
    blocks: MaskBlocks,
) -> Draws | None:  # fmt: skip
    """Pack, beside `direct`, the masks of those of them that are `guided` by grammars, and the rows of logits to copy
    and edit. None where there is nothing to draw."""
    if direct is None and not edits:
        return None
    edited, rows = None, None
    if edits:
        outputs = np.array([each.output for each in edits], np.int32)
        copies = np.arange(len(edits), dtype=np.int32)
        edited = pack_rows(fields_of([each.rules.params for each in edits]), _keys_of(edits), copies, outputs, staging)
        rows = staging.put(np.array([each.source for each in edits], np.int32))
    guided_edits = guided_by([each._replace(source=i) for i, each in enumerate(edits)])
    return Draws(
        direct=direct,
        direct_masks=None if guided is None else blocks.begin(guided, staging),
        edited=edited,
        edited_masks=None if guided_edits is None else blocks.begin(guided_edits, staging),
        edited_rows=rows,
        edits=edits,
        first=first,
    )


def guided_by(draws: list[Draw]) -> Guided | None:
    """Those of the draws that are under grammars; None where none is."""
    found = [(matcher, each) for each in draws if (matcher := each.rules.matcher) is not None]
    if not found:
        return None
    rows = np.array([each.source for _, each in found], np.int32)
    return Guided([matcher for matcher, _ in found], rows, [each.output for _, each in found])


def fields_of(params: list[SamplingParams]) -> Ints:
    """Return `[FIELDS, n]`: the bits of temperature, top-p and min-p, and top-k."""
    fields = np.empty((FIELDS, len(params)), np.int32)
    fields[:3] = np.array([(p.temperature, p.top_p, p.min_p) for p in params], np.float32).T.view(np.int32)
    fields[3] = [p.top_k for p in params]
    return fields


def _keys_of(draws: list[Draw]) -> Keys:
    return noise_keys(
        np.array([each.rules.sequence_key for each in draws], np.uint64),
        np.array([each.position for each in draws], np.uint64),
    )


def pack_rows(fields: Ints, keys: Keys, sources: Ints, targets: Ints, staging: Staging) -> SamplingRows:
    """Pack `n` draws into one array, a field a line: draw i from row `sources[i]` to output `targets[i]`."""
    n = len(keys)
    lines = np.zeros((FIELDS + 4, -(-n // 4) * 4), np.int32)  # lines of whole 16 bytes
    lines[:FIELDS, :n] = fields
    lines[FIELDS : FIELDS + 2, :n] = keys.view(np.int32).reshape(n, 2).T  # little-endian: the low half comes first
    lines[FIELDS + 2, :n] = sources
    lines[FIELDS + 3, :n] = targets
    temperature, top_p, min_p, top_k, low, high, source, target = staging.put(lines)[:, :n]
    return SamplingRows(
        temperature=temperature.view(torch.float32), top_k=top_k, top_p=top_p.view(torch.float32),
        min_p=min_p.view(torch.float32), key_low=low, key_high=high, source=source, target=target,
    )  # fmt: skip


def launch_draws(draws: Draws, logits: Tensor, out: Tensor) -> Logprobs | None:
    """Sample from `logits [n, vocab]`, which may change, into `out`, int32; return the log-probabilities that were
    asked for. Nothing waits; whoever sends the ids to the host says so to `draws` (`drawn`)."""
    # Copied first: choices of one prompt share a row, though then all of them are edited, or all have the same mask.
    raw = None if draws.edited_rows is None else logits.index_select(0, draws.edited_rows).float()
    if draws.direct is not None:
        if draws.direct_masks is not None:
            draws.direct_masks.apply(logits)
        sample(logits, draws.direct, out)
    if raw is not None:
        _sample_edited(raw, draws, out)
    return None if raw is None else _logprobs(raw, draws, out)


def _sample_edited(raw: Tensor, draws: Draws, out: Tensor) -> None:
    assert draws.edited is not None
    wants_raw = any(each.rules.params.num_logprobs is not None for each in draws.edits)
    edited = raw.clone() if wants_raw else raw
    for row, each in zip(edited, draws.edits, strict=True):
        each.rules.edit(row, each.position)
    if draws.edited_masks is not None:
        draws.edited_masks.apply(edited)
    sample(edited, draws.edited, out)


def _logprobs(raw: Tensor, draws: Draws, out: Tensor) -> Logprobs | None:
    asked = [(i, each.output, each.rules.params.num_logprobs) for i, each in enumerate(draws.edits)]
    wanted = [(j, i, num) for j, i, num in asked if num is not None]
    if not wanted:
        return None
    logprobs = torch.stack([raw[j] for j, _, _ in wanted]).log_softmax(-1)
    ids = torch.cat([out[i : i + 1] for _, i, _ in wanted]).long()
    num_top = [min(num, raw.shape[1]) for _, _, num in wanted]
    top, top_ids = logprobs.topk(max(num_top), dim=-1)
    return Logprobs([draws.first + i for _, i, _ in wanted], num_top, download(logprobs.gather(1, ids[:, None])),
                    download(top), download(top_ids))  # fmt: skip
