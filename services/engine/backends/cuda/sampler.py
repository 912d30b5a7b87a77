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
from services.common.request import TokenLogprob
from services.engine.backends.cuda.clock import download
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Sample
from services.engine.masks import Masks, masks_of
from services.engine.noise import noise_keys
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


def stage_draws(
    samples: list[Sample], first: int, vocab: int, staging: Staging, device: torch.device, *, greedy_done: bool
) -> Draws | None:
    """Pack what `samples` need; sample i draws output i.

    Their logits are a matrix of their own, whose row 0 is row `first` of the batch's. `greedy_done`: plain greedy ones
    have their tokens already.
    """
    direct: list[tuple[SequenceRules, int, int, int]] = []
    edited: list[tuple[SequenceRules, int, int, int]] = []
    for i, one in enumerate(samples):
        rules = rules_of(one.sequence, vocab, device)
        if greedy_done and rules.always_plain:
            continue
        if rules.edits(one.position) or rules.params.num_logprobs is not None:
            edited.append((rules, one.position, one.logits_row - first, i))
        elif not (greedy_done and rules.params.temperature == 0):
            direct.append((rules, one.position, one.logits_row - first, i))
    if not direct and not edited:
        return None
    return Draws(
        direct=_rows(direct, [row for _, _, row, _ in direct], staging) if direct else None,
        edited=_rows(edited, list(range(len(edited))), staging) if edited else None,
        edited_rows=staging.put(np.array([row for _, _, row, _ in edited], np.int32)) if edited else None,
        edits=[(rules, position, i) for rules, position, _, i in edited],
        first=first,
        masks=masks_of([rules.matcher for rules, *_ in edited], vocab, device),
    )


def _rows(draws: list[tuple[SequenceRules, int, int, int]], sources: list[int], staging: Staging) -> SamplingRows:
    """Pack `n` draws into one array, a field a line."""
    n = len(draws)
    fields = np.zeros((8, -(-n // 4) * 4), np.int32)  # lines of whole 16 bytes
    params = [rules.params for rules, *_ in draws]
    fields[:3, :n] = np.array([(p.temperature, p.top_p, p.min_p) for p in params], np.float32).T.view(np.int32)
    fields[3, :n] = [p.top_k for p in params]
    keys = noise_keys(
        np.array([rules.sequence_key for rules, *_ in draws], np.uint64),
        np.array([position for _, position, *_ in draws], np.uint64),
    )
    fields[4:6, :n] = keys.view(np.int32).reshape(n, 2).T  # little-endian: the low half comes first
    fields[6, :n] = sources
    fields[7, :n] = [i for *_, i in draws]
    temperature, top_p, min_p, top_k, low, high, source, target = staging.put(fields)[:, :n]
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
