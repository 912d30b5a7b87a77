"""From logits to token ids: one argmax for plain greedy rows; the rest pay for what they ask for, and only they."""

from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.batch import Sample
from services.engine.cpu_masks import CpuMasks, begin_cpu_masks
from services.engine.drawing import draw
from services.engine.noise import noise_key
from services.engine.sampling_rules import SequenceRules, note_drawn, rules_of


@dataclass(frozen=True, slots=True)
class _Logprob:
    """Log-probabilities of one sample, from the raw logits; `top` holds `num_logprobs` (values, ids)."""

    chosen: Tensor
    top: tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's tokens, in the order of its samples."""

    ids: Tensor  # [num_samples], int64, on the device
    raw_logprobs: dict[int, _Logprob]

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Sample index -> log-probability, for those that asked; waits for the device."""
        return {
            i: TokenLogprob(
                token_id=int(self.ids[i]),
                logprob=float(each.chosen),
                top=list(zip(each.top[1].tolist(), each.top[0].tolist(), strict=True)),
            )
            for i, each in self.raw_logprobs.items()
        }


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """What a step's samples ask for, known before there are logits."""

    samples: list[Sample]
    rules: list[SequenceRules]
    special: list[int]
    """Samples that are more than the argmax of the raw logits."""
    masks: Future[CpuMasks] | None
    """By place in `special`; being made."""

    @property
    def is_identity(self) -> bool:
        """Whether sample i draws from logits row i, for all."""
        return all(sample.logits_row == i for i, sample in enumerate(self.samples))


class Sampler:
    """Owned by the model runner; keeps each sequence's rules in its `sampler_state`."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    def plan(self, samples: list[Sample]) -> SamplingPlan:
        """Before the forward pass: grammars make their masks meanwhile."""
        rules = [rules_of(sample.sequence, self._vocab_size, self._device) for sample in samples]
        special = [
            i
            for i, (rule, sample) in enumerate(zip(rules, samples, strict=True))
            if not (rule.always_plain or rule.is_plain(sample.position))
        ]
        masks = begin_cpu_masks([rules[i].matcher for i in special], self._vocab_size)
        return SamplingPlan(samples, rules, special, masks)

    def sample(self, logits: Tensor, plan: SamplingPlan) -> Sampled:
        """logits: [num_logits_rows, vocab_size], changed; sample i draws from row samples[i].logits_row."""
        samples, special = plan.samples, plan.special
        is_identity = plan.is_identity and len(samples) == len(logits)
        if len(special) == len(samples):
            ids = torch.empty(len(samples), dtype=torch.int64, device=logits.device)
        else:
            ids = logits.argmax(-1)
            if not is_identity:
                ids = ids[[sample.logits_row for sample in samples]]
        if not special:
            return Sampled(ids, {})
        in_place = is_identity and len(special) == len(samples)
        raw = logits.float() if in_place else logits[[samples[i].logits_row for i in special]].float()
        wants_raw = any(plan.rules[i].params.num_logprobs is not None for i in special)
        edited = raw.clone() if wants_raw else raw
        ids[special] = self._draw(edited, plan)
        note_drawn([(plan.rules[i], i) for i in special], ids)
        return Sampled(ids, _logprobs(raw, ids, special, plan.rules) if wants_raw else {})

    def _draw(self, logits: Tensor, plan: SamplingPlan) -> Tensor:
        """logits: [n, vocab_size], float32, of the special samples, changed; returns [n]."""
        rules = [(plan.rules[i], plan.samples[i].position) for i in plan.special]
        for row, (rule, position) in enumerate(rules):
            if rule.edits(position):
                rule.edit(logits[row], position)
        if plan.masks is not None:
            plan.masks.result().apply(logits)
        random = [row for row, (rule, _) in enumerate(rules) if rule.params.temperature > 0]
        keys = [noise_key(rules[r][0].params.seed, rules[r][0].choice, rules[r][1]) for r in random]
        params = [rules[r][0].params for r in random]
        if len(random) == len(rules):
            return draw(logits, params, keys)
        ids = logits.argmax(-1)
        if random:
            ids[random] = draw(logits[random], params, keys)
        return ids


def _logprobs(raw: Tensor, ids: Tensor, special: list[int], rules: list[SequenceRules]) -> dict[int, _Logprob]:
    """raw: [len(special), vocab_size], float32, as the model gave them."""
    found: dict[int, _Logprob] = {}
    for row, i in enumerate(special):
        num = rules[i].params.num_logprobs
        if num is not None:
            logprobs = raw[row].log_softmax(-1)
            found[i] = _Logprob(logprobs[ids[i]], logprobs.topk(min(num, len(logprobs))))
    return found
