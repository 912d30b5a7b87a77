"""A launched step's tokens on their way to the host."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.backends.cuda.clock import Mark
from services.engine.backends.cuda.sampler import Logprobs
from services.engine.prompt_scoring import ChunkScores


@dataclass(slots=True)
class Waiting:
    """Seconds that the loop has spent waiting for the device: what is left of a step is the host's own work."""

    seconds: float = 0.0


@dataclass(slots=True)
class DeviceResult:
    """Read one step late: by then the copies have usually been made. See StepResult."""

    parts: list[Tensor]
    wanted: list[Logprobs]
    mark: Mark
    waiting: Waiting
    scores: list[ChunkScores]
    _ids: list[int] = field(default_factory=list)
    _read: bool = False

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples; waits for the step."""
        if not self._read:
            began = time.perf_counter()
            self.mark.wait()
            self.waiting.seconds += time.perf_counter() - began
            self._ids = [i for part in self.parts for i in part.tolist()]
            self._read = True
        return self._ids

    def prompt_scores(self) -> list[ChunkScores]:
        """Of the batch's scored prompt tokens; what `token_ids` waits for."""
        return self.scores

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log-probabilities by sample, of those that asked for them."""
        if not self.wanted:
            return {}
        ids = self.token_ids()
        return {i: each for one in self.wanted for i, each in one.by_sample(ids).items()}
