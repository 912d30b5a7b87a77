"""Launches a step: forward, logits of the tokens that are sampled from, sampling. Results are read when due."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.backends.interface import Backend
from services.engine.batch import Batch, Sample, Scored
from services.engine.models.generic import GenericDecoder
from services.engine.models.layers import Decoder
from services.engine.prompt_scoring import ChunkScores, score
from services.engine.runner import Done
from services.engine.sampler import Sampled, Sampler


@dataclass(frozen=True, slots=True)
class SampledStep:
    """See StepResult."""

    sampled: Sampled | None
    scores: list[ChunkScores]

    @property
    def written(self) -> Done:
        """See StepResult."""
        return Done()

    def token_ids(self) -> list[int]:
        """See StepResult."""
        if self.sampled is None:
            return []
        ids: list[int] = self.sampled.ids.tolist()
        return ids

    def logprobs(self) -> dict[int, TokenLogprob]:
        """See StepResult."""
        return {} if self.sampled is None else self.sampled.logprobs()

    def prompt_scores(self) -> list[ChunkScores]:
        """See StepResult."""
        return self.scores


class ModelRunner:
    """The Runner over a backend's operations; owns the decoder, the backend and the sampler."""

    def __init__(self, decoder: Decoder | GenericDecoder, backend: Backend, sampler: Sampler) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self.backend = backend

    def launch(self, batch: Batch) -> SampledStep:
        """Compute a batch; its KV is in the pool and its ids are the rows' next inputs when the device gets there."""
        samples = batch.samples()
        plan = self._sampler.plan(samples)
        ids, n = self.backend.prepare(batch), len(batch.logits_tokens)
        states = self._decoder.states(ids, self._wanted(batch), self.backend)
        scores = self._score(batch.scored, states[n:]) if batch.scored else []
        if not samples:
            return SampledStep(None, scores)
        logits = self._decoder.logits(states[:n], self.backend)
        sampled = self._sampler.sample(logits, plan)
        self._remember(samples, sampled.ids)
        return SampledStep(sampled, scores)

    def set_next_ids(self, rows: list[int], ids: list[int]) -> None:
        """Give rows their next input ids from the host: tokens that were sampled elsewhere."""
        device = self.backend.device
        self.backend.remember(torch.tensor(rows, device=device), torch.tensor(ids, device=device))

    def _wanted(self, batch: Batch) -> Tensor | None:
        """Tokens whose final states are needed: those that are sampled from, then the scored ones; None for all."""
        if not batch.scored and len(batch.logits_tokens) == batch.num_tokens:
            return None
        scored = [np.arange(each.rows.start, each.rows.stop) for each in batch.scored]
        return torch.from_numpy(np.concatenate((batch.logits_tokens, *scored))).long().to(self.backend.device)

    def _score(self, scored: list[Scored], states: Tensor) -> list[ChunkScores]:
        decoder, parts = self._decoder, states.split([len(each.targets) for each in scored])
        return [
            score(each, part, lambda rows: decoder.logits(rows, self.backend), decoder.vocab_size, Tensor.cpu)
            for each, part in zip(scored, parts, strict=True)
        ]

    def _remember(self, samples: list[Sample], ids: Tensor) -> None:
        index = [i for i, s in enumerate(samples) if s.sequence.row is not None]
        if not index:
            return
        rows = torch.tensor([samples[i].sequence.row for i in index], device=self.backend.device)
        self.backend.remember(rows, ids if len(index) == len(samples) else ids[index])
