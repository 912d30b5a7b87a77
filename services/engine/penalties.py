"""Penalties on tokens that came before, and on going on: counted on the device, so that no step waits for the host."""

import math

import torch
from torch import Tensor

from services.common.request import LengthPenalty, PromptPenalty, SamplingParams
from services.engine.upload import upload

_MOST_EXPONENT = 60.0
"""e^60 decides every draw, and |x| * e^60 is still a float32."""


class TokenPenalties:
    """Counts of one sequence's tokens on its device, for the parameters that ask for them."""

    def __init__(self, params: SamplingParams, prompt: Tensor, outputs: Tensor, vocab_size: int) -> None:
        """prompt: ids on the host; outputs: int64 ids on the device, the output so far."""
        device = outputs.device
        self._params = params
        self._counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._add(outputs)
        if params.prompt_penalty is PromptPenalty.ALL:
            self._add(upload(prompt, device).long())
        self._in_prompt: Tensor | None = None
        if params.prompt_penalty is PromptPenalty.REPETITION and params.repetition_penalty != 1.0:
            self._in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._in_prompt[upload(prompt, device).long()] = True

    @staticmethod
    def asked_for(params: SamplingParams) -> bool:
        """Whether these parameters count tokens."""
        return (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )  # fmt: skip

    def apply(self, logits: Tensor) -> None:
        """logits: [vocab_size], float32, changed. Repetition as in CTRL (arXiv 1909.05858)."""
        params, counted = self._params, self._counts > 0
        if params.repetition_penalty != 1.0:
            repeated = counted if self._in_prompt is None else counted | self._in_prompt
            factor = torch.where(logits > 0, 1.0 / params.repetition_penalty, params.repetition_penalty)
            logits.copy_(torch.where(repeated, logits * factor, logits))
        logits.sub_(self._counts, alpha=params.frequency_penalty)
        logits.sub_(counted.float(), alpha=params.presence_penalty)

    def drawn(self, token_id: Tensor) -> None:
        """Count a token, [1] int64 on the device."""
        self._add(token_id)

    def _add(self, ids: Tensor) -> None:
        self._counts.index_add_(0, ids, torch.ones(len(ids), device=ids.device))


def lengthen(logits: Tensor, penalty: LengthPenalty, end_ids: Tensor, position: int) -> None:
    """Raise in place, in logits [vocab_size], float32, the tokens that end a sequence at this output position."""
    exponent = min((position - penalty.start) * math.log(penalty.factor), _MOST_EXPONENT)
    ends = logits[end_ids]
    logits[end_ids] = ends + ends.abs() * math.expm1(exponent)
