"""The masks of grammars on rows of logits that lie on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.masks import rule_out
from services.engine.backends.cuda.staging import Staging
from services.engine.masks import Masks
from services.engine.matcher import Matcher


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Being made; of some rows of one matrix of logits."""

    masks: Masks
    rows: Tensor  # [n] int32, on the device

    def apply(self, logits: Tensor) -> None:
        """Rule out in place, in logits [num_rows, vocab_size], what the grammars do not allow; waits for the bits, not
        for the logits."""
        rule_out(logits, self.rows, self.masks.words().to(logits.device, non_blocking=True))


def stage_masks(
    matchers: list[tuple[int, Matcher | None]], vocab: int, staging: Staging, device: torch.device
) -> RowMasks | None:  # fmt: skip
    """Begin to make the masks of rows, by their numbers; None where none of them has a matcher."""
    found = [(row, matcher) for row, matcher in matchers if matcher is not None]
    if not found:
        return None
    masks = Masks({i: matcher for i, (_, matcher) in enumerate(found)}, len(found), vocab, device)
    return RowMasks(masks, staging.put(np.array([row for row, _ in found], np.int32)))
