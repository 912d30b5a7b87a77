"""A launched step's tokens on their way to the host."""

from __future__ import annotations

import time
from collections.abc import Callable
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


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a step sends to the host; there once `written` is passed."""

    decoded: Tensor | None
    """A block of `HostIds` with the decode rows' ids; given back once it is read."""
    first: Tensor | None
    """Ids of the samples that end prompts."""
    logprobs: list[Logprobs]
    scores: list[ChunkScores]
    written: Mark
    """Behind all that the step launches."""


@dataclass(slots=True)
class DeviceResult:
    """Read one step late: by then the copies have usually been made. See StepResult."""

    num_decoded: int
    outputs: Callable[[], Outputs]
    """Launches what is left to launch of the step the first time it is called."""
    host_ids: HostIds
    waiting: Waiting
    _ids: list[int] = field(default_factory=list)
    _read: bool = False

    @property
    def written(self) -> Mark:
        """See StepResult."""
        return self.outputs().written

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples; waits for the step."""
        if not self._read:
            outputs = self.outputs()
            began = time.perf_counter()
            outputs.written.wait()
            self.waiting.seconds += time.perf_counter() - began
            if outputs.decoded is not None:
                self._ids = outputs.decoded[: self.num_decoded].tolist()
                self.host_ids.give_back(outputs.decoded)
            if outputs.first is not None:
                self._ids += outputs.first.tolist()
            self._read = True
        return self._ids

    def prompt_scores(self) -> list[ChunkScores]:
        """Of the batch's scored prompt tokens; what `token_ids` waits for."""
        return self.outputs().scores

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log-probabilities by sample, of those that asked for them."""
        asked = self.outputs().logprobs
        if not asked:
            return {}
        ids = self.token_ids()
        return {i: each for one in asked for i, each in one.by_sample(ids).items()}
