"""From logits to token ids: one argmax for plain greedy rows; the rest pay for what they ask for, and only they."""

from dataclasses import dataclass

from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.batch import Sample
from services.engine.drawing import draw
from services.engine.noise import noise_key
from services.engine.sampling_rules import SequenceRules, mask_grammars, rules_of


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


class Sampler:
    """Owned by the model runner; keeps each sequence's rules in its `sampler_state`."""

    def sample(self, logits: Tensor, samples: list[Sample]) -> Sampled:
        """logits: [num_logits_rows, vocab_size]; sample i draws from row samples[i].logits_row."""
        rules = [rules_of(sample.sequence, logits.shape[-1], logits.device) for sample in samples]
        special = [
            i
            for i, (rule, sample) in enumerate(zip(rules, samples, strict=True))
            if not (rule.always_plain or rule.is_plain(sample.position))
        ]
        ids = logits.argmax(-1)
        if len(samples) != len(logits) or any(sample.logits_row != i for i, sample in enumerate(samples)):
            ids = ids[[sample.logits_row for sample in samples]]
        if not special:
            return Sampled(ids, {})
        raw = logits[[samples[i].logits_row for i in special]].float()
        ids[special] = self._draw(raw.clone(), [(rules[i], samples[i].position) for i in special])
        for i in special:
            rules[i].drawn(ids[i : i + 1])
        return Sampled(ids, _logprobs(raw, ids, special, rules))

    def _draw(self, logits: Tensor, rules: list[tuple[SequenceRules, int]]) -> Tensor:
        """logits: [n, vocab_size], float32, changed; returns [n]."""
        for row, (rule, position) in enumerate(rules):
            if rule.edits(position):
                rule.edit(logits[row], position)
        mask_grammars(logits, [rule for rule, _ in rules])
        ids = logits.argmax(-1)
        random = [row for row, (rule, _) in enumerate(rules) if rule.params.temperature > 0]
        if random:
            keys = [noise_key(rules[r][0].params.seed, rules[r][0].choice, rules[r][1]) for r in random]
            ids[random] = draw(logits[random], [rules[r][0].params for r in random], keys)
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
