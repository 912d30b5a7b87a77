"""A launched step's tokens on their way to the host."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from services.common.request import TokenLogprob
from services.engine.backends.cuda.clock import Mark, pinned
from services.engine.backends.cuda.row_masks import RowMasks
from services.engine.backends.cuda.sampler import Logprobs
from services.engine.matcher import Drawn
from services.engine.prompt_scoring import ChunkScores

_BLOCKS = 4
"""More than steps are in flight, so that ids have been read before their block's turn comes again."""


@dataclass(slots=True)
class Waiting:
    """Seconds that the loop has spent waiting for the device: what is left of a step is the host's own work."""

    seconds: float = 0.0


class HostIds:
    """Pinned blocks that a step's ids come to the host in, by turns; owned by the backend."""

    def __init__(self, num_ids: int, device: torch.device) -> None:
        """`num_ids`: room of a block; it grows where there are more."""
        self._device = device
        self._blocks = [pinned(num_ids, device) for _ in range(_BLOCKS)]
        self._drawn: list[Drawn | None] = [None] * _BLOCKS
        self._turn = 0

    def take(self, num_ids: int) -> Tensor:
        """Return the block of the next step, which its last kernel stores `num_ids` ids into."""
        self._turn = (self._turn + 1) % _BLOCKS
        last = self._drawn[self._turn]
        if last is not None:
            last.read()  # who has not until now, will find them known
            self._drawn[self._turn] = None
        if len(self._blocks[self._turn]) < num_ids:
            self._blocks[self._turn] = pinned(num_ids, self._device)
        return self._blocks[self._turn]

    def launched(self, num_ids: int) -> tuple[Drawn, Mark]:
        """All that stores into the block taken last is launched; returns what reads it, and the mark behind it."""
        mark = Mark(self._device)
        drawn = self._drawn[self._turn] = Drawn(self._blocks[self._turn][:num_ids].numpy(), mark.wait)
        return drawn, mark


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a step sends to the host; there once `written` is passed."""

    drawn: list[Drawn]
    """Ids of the decode rows, then of the samples that end prompts."""
    masks: list[RowMasks]
    """That they were drawn under."""
    logprobs: list[Logprobs]
    scores: list[ChunkScores]
    written: Mark
    """Behind all that the step launches."""


@dataclass(slots=True)
class DeviceResult:
    """Read one step late: by then the copies have usually been made. See StepResult."""

    outputs: Outputs
    waiting: Waiting
    _ids: list[int] | None = None

    @property
    def written(self) -> Mark:
        """See StepResult."""
        return self.outputs.written

    def token_ids(self) -> list[int]:
        """Sampled ids in the order of the batch's samples; waits for the step. Raises what went wrong with its
        masks."""
        if self._ids is None:
            outputs = self.outputs
            began = time.perf_counter()
            outputs.written.wait()
            self.waiting.seconds += time.perf_counter() - began
            for each in outputs.masks:
                each.masks.words()
            self._ids = [token_id for drawn in outputs.drawn for token_id in drawn.read()]
        return self._ids

    def prompt_scores(self) -> list[ChunkScores]:
        """Of the batch's scored prompt tokens; what `token_ids` waits for."""
        return self.outputs.scores

    def logprobs(self) -> dict[int, TokenLogprob]:
        """Log-probabilities by sample, of those that asked for them."""
        asked = self.outputs.logprobs
        if not asked:
            return {}
        ids = self.token_ids()
        return {i: each for one in asked for i, each in one.by_sample(ids).items()}
