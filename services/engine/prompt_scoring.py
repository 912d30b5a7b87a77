"""How likely a prompt's own tokens are: log-probabilities of a chunk's tokens, from its hidden states.

Logits of a whole chunk would be [num_tokens, vocab_size] floats, gigabytes for a long one. They are made a block of
rows at a time, and only what is asked for is kept of each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.common.prompt_logprobs import PromptLogprobs
from services.engine.batch import Scored
from services.engine.upload import upload

_BLOCK_LOGITS = 1 << 23
"""Logits at a time: 32 MiB of float32, and a few times that on the way."""


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """Of one chunk's tokens; on the host once the step's results are."""

    scored: Scored
    logprobs: Tensor  # [n] float32
    ranks: Tensor  # [n] int32
    top_ids: Tensor  # [n, k] int32
    top_logprobs: Tensor  # [n, k] float32

    def packed(self) -> PromptLogprobs:
        """For the control process; only when on the host."""
        return PromptLogprobs(
            self.scored.first, self.top_ids.shape[1], _bytes(self.logprobs, "<f4"), _bytes(self.ranks, "<i4"),
            _bytes(self.top_ids, "<i4"), _bytes(self.top_logprobs, "<f4"),
        )  # fmt: skip


def score(
    scored: Scored, hidden: Tensor, logits_of: Callable[[Tensor], Tensor], vocab_size: int,
    download: Callable[[Tensor], Tensor],
) -> ChunkScores:  # fmt: skip
    """hidden: [n, hidden_size], of the tokens before the scored ones; logits_of: [m, hidden_size] -> [m, vocab_size];
    download: starts a copy to the host."""
    targets = upload(torch.from_numpy(scored.targets).long(), hidden.device)
    block = max(_BLOCK_LOGITS // vocab_size, 1)
    parts = [
        _score_rows(logits_of(hidden[start : start + block]).float(), targets[start : start + block], scored.num_top)
        for start in range(0, len(hidden), block)
    ]
    return ChunkScores(scored, *[download(torch.cat(column)) for column in zip(*parts, strict=True)])


def _score_rows(logits: Tensor, targets: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logits: [m, vocab_size], float32."""
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(1, targets[:, None])
    ranks = (logprobs > chosen).sum(-1) + 1
    top, ids = logprobs.topk(min(num_top, logprobs.shape[1]), dim=-1)
    return chosen[:, 0], ranks.int(), ids.int(), top


def _bytes(values: Tensor, kind: str) -> bytes:
    return np.ascontiguousarray(values.numpy()).astype(kind, copy=False).tobytes()
