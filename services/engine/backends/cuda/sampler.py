"""Sampling on the device. Plain greedy decode rows cost nothing here: the decode graph has their argmax.

Rows with a temperature are drawn by one kernel straight from the logits. Rows that edit their logits (penalties, bias,
masks) or want log-probabilities are copied to float32 first. Nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import SamplingRows, sample
from services.common.request import SamplingParams, TokenLogprob
from services.engine.arrays import Ints
from services.engine.backends.cuda.clock import download
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Sample
from services.engine.masks import Masks, masks_of
from services.engine.noise import Keys, noise_keys
from services.engine.sampling_rules import SequenceRules, note_drawn, rules_of


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


@dataclass(frozen=True, slots=True)
class Draws:
    """What one set of logits is sampled by, packed: `direct` from the logits, `edited` from copies of their rows."""

    direct: SamplingRows | None
    edited: SamplingRows | None
    edited_rows: Tensor | None
    edits: list[tuple[SequenceRules, int, int]]
    """Rules, output position and output index of each edited row."""
    first: int
    """The batch's sample that output 0 belongs to."""
    masks: Masks | None
    """Of the edited rows; being made."""


FIELDS = 4
"""Lines of `fields_of`."""


def stage_draws(samples: list[Sample], first: int, vocab: int, staging: Staging, device: torch.device) -> Draws | None:
    """Pack what `samples` need; sample i draws output i.

    Their logits are a matrix of their own, whose row 0 is row `first` of the batch's.
    """
    if not samples:
        return None
    direct: list[tuple[SequenceRules, int, int]] = []
    edits: list[tuple[SequenceRules, int, int]] = []
    for i, one in enumerate(samples):
        rules = rules_of(one.sequence, vocab, device)
        edited = rules.edits(one.position) or rules.params.num_logprobs is not None
        (edits if edited else direct).append((rules, one.position, i))
    sources = [one.logits_row - first for one in samples]
    drawn = None
    if direct:
        targets = np.array([i for *_, i in direct], np.int32)
        fields = fields_of([rules.params for rules, *_ in direct])
        drawn = pack_rows(fields, _keys_of(direct), np.array(sources, np.int32)[targets], targets, staging)
    return edited_draws(edits, [sources[i] for *_, i in edits], drawn, first, staging, vocab, device)


def edited_draws(
    edits: list[tuple[SequenceRules, int, int]], sources: list[int], direct: SamplingRows | None, first: int,
    staging: Staging, vocab: int, device: torch.device,
) -> Draws | None:  # fmt: skip
    """Pack the rows of logits to copy and edit: `(rules, output position, output)`, each copied from its row in
    `sources`; return them beside `direct`, or None where there is nothing to draw."""
    if not edits:
        return None if direct is None else Draws(direct, None, None, [], first, None)
    outputs = np.array([i for *_, i in edits], np.int32)
    each = np.arange(len(edits), dtype=np.int32)
    return Draws(
        direct=direct,
        edited=pack_rows(fields_of([rules.params for rules, *_ in edits]), _keys_of(edits), each, outputs, staging),
        edited_rows=staging.put(np.array(sources, np.int32)),
        edits=edits,
        first=first,
        masks=masks_of([rules.matcher for rules, *_ in edits], vocab, device),
    )


def fields_of(params: list[SamplingParams]) -> Ints:
    """Return `[FIELDS, n]`: the bits of temperature, top-p and min-p, and top-k."""
    fields = np.empty((FIELDS, len(params)), np.int32)
    fields[:3] = np.array([(p.temperature, p.top_p, p.min_p) for p in params], np.float32).T.view(np.int32)
    fields[3] = [p.top_k for p in params]
    return fields


def _keys_of(draws: list[tuple[SequenceRules, int, int]]) -> Keys:
    return noise_keys(
        np.array([rules.sequence_key for rules, *_ in draws], np.uint64),
        np.array([position for _, position, _ in draws], np.uint64),
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
    """Sample from `logits [n, vocab]` into `out`, int32; return the log-probabilities that were asked for."""
    if draws.direct is not None:
        sample(logits, draws.direct, out)
    if draws.edited is None:
        return None
    assert draws.edited_rows is not None
    raw = logits.index_select(0, draws.edited_rows).float()
    edited = raw
    if any(rules.edits(position) for rules, position, _ in draws.edits):
        wants_raw = any(rules.params.num_logprobs is not None for rules, _, _ in draws.edits)
        edited = raw.clone() if wants_raw else raw
        for row, (rules, position, _) in zip(edited, draws.edits, strict=True):
            rules.edit(row, position)
        if draws.masks is not None:
            draws.masks.apply(edited)
    sample(edited, draws.edited, out)
    note_drawn([(rules, i) for rules, _, i in draws.edits], out)
    return _logprobs(raw, draws, out)


def _logprobs(raw: Tensor, draws: Draws, out: Tensor) -> Logprobs | None:
    asked = [(j, i, rules.params.num_logprobs) for j, (rules, _, i) in enumerate(draws.edits)]
    wanted = [(j, i, num) for j, i, num in asked if num is not None]
    if not wanted:
        return None
    logprobs = torch.stack([raw[j] for j, _, _ in wanted]).log_softmax(-1)
    ids = torch.cat([out[i : i + 1] for _, i, _ in wanted]).long()
    num_top = [min(num, raw.shape[1]) for _, _, num in wanted]
    top, top_ids = logprobs.topk(max(num_top), dim=-1)
    return Logprobs([draws.first + i for _, i, _ in wanted], num_top, download(logprobs.gather(1, ids[:, None])),
                    download(top), download(top_ids))  # fmt: skip
