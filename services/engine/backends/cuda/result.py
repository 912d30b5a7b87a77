"""A launched step's tokens on their way to the host."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.backends.cuda.clock import Mark, pinned
from services.engine.backends.cuda.sampler import Logprobs
from services.engine.prompt_scoring import ChunkScores


@dataclass(slots=True)
class Waiting:
    """Seconds that the loop has spent waiting for the device: what is left of a step is the host's own work."""

    seconds: float = 0.0


class HostIds:
    """Pinned blocks that sampled ids come to the host in, each taken for one step; owned by the backend."""

    def __init__(self, num_ids: int, device: torch.device) -> None:
        self._num_ids, self._device = num_ids, device
        self._free: list[Tensor] = []

    def fetch(self, ids: Tensor) -> Tensor:
        """Launch the copy of int32 `ids` to a block, which is the caller's until `give_back`."""
        block = self._free.pop() if self._free else pinned(self._num_ids, self._device)
        block[: len(ids)].copy_(ids, non_blocking=True)
        return block

    def give_back(self, block: Tensor) -> None:
        """A block has been read."""
        self._free.append(block)


@dataclass(slots=True)
class DeviceResult:
    """Read one step late: by then the copies have usually been made. See StepResult."""

    num_decoded: int
    decoded: Tensor | None
    """A block of `host_ids` with the decode rows' ids; given back once it is read."""
    first: Tensor | None
    """Ids of the samples that end prompts."""
    host_ids: HostIds
    wanted: list[Logprobs]
    written: Mark
    """Behind the copies of the ids, too."""
    waiting: Waiting
    scores: list[ChunkScores]
    _ids: list[int] = field(default_factory=list)
    _read: bool = False

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples; waits for the step."""
        if not self._read:
            began = time.perf_counter()
            self.written.wait()
            self.waiting.seconds += time.perf_counter() - began
            if self.decoded is not None:
                self._ids = self.decoded[: self.num_decoded].tolist()
                self.host_ids.give_back(self.decoded)
            if self.first is not None:
                self._ids += self.first.tolist()
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
