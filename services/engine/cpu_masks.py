"""Masks put on logits on a CPU, where each write costs: what most rows need depends on how much their grammars allow.

Inside a JSON string nearly every token may come, and a few are ruled out one by one. Between two keys a handful may:
those are kept, and the row is filled around them, which is many times faster than ruling out the rest one by one.
"""

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.engine.masks import Masks
from services.engine.matcher import Matcher

_FEW = 8
"""A row of which less than this fraction is allowed is filled around what is."""


@dataclass(frozen=True, slots=True)
class CpuMasks:
    """Made by the thread that fills the bits; applied by the one that has the logits."""

    bits: Tensor  # [num_rows, words] int32
    dense: list[int]
    """Rows that allow much."""
    sparse: Tensor  # [m] int64: rows that allow little
    allowed: Tensor  # int64: places in the flat logits that these allow

    def apply(self, logits: Tensor) -> None:
        """Rule out in place, in logits [num_rows, vocab_size], float32, contiguous, what is not allowed."""
        if len(self.sparse):
            flat = logits.view(-1)
            kept = flat.index_select(0, self.allowed)
            logits.index_fill_(0, self.sparse, -torch.inf)
            flat.index_copy_(0, self.allowed, kept)
        if self.dense:
            from xgrammar import apply_token_bitmask_inplace  # where there is a matcher it has been imported

            apply_token_bitmask_inplace(logits, self.bits, indices=self.dense)


def cpu_masks(bits: Tensor, rows: list[int], vocab_size: int) -> CpuMasks:
    """bits: [num_rows, words] int32; rows: those that have a grammar."""
    words = bits.numpy()
    counts = np.bitwise_count(words[rows].view(np.uint32)).sum(axis=1)
    is_sparse = counts * _FEW < vocab_size
    sparse = np.array(rows, np.int64)[is_sparse]
    flags = np.unpackbits(words[sparse].view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    places, ids = np.nonzero(flags.view(np.bool_))
    return CpuMasks(
        bits,
        [row for row, few in zip(rows, is_sparse.tolist(), strict=True) if not few],
        torch.from_numpy(sparse),
        torch.from_numpy(sparse[places] * vocab_size + ids),
    )


def begin_cpu_masks(matchers: list[Matcher | None], vocab_size: int) -> Future[CpuMasks] | None:
    """Of logits whose rows have these matchers, in order; None where none has one."""
    found = {row: matcher for row, matcher in enumerate(matchers) if matcher is not None}
    if not found:
        return None
    words = torch.full((len(matchers), (vocab_size + 31) // 32), -1, dtype=torch.int32)
    masks = Masks(found, words.numpy())
    return masks.then(lambda _: cpu_masks(words, list(found), vocab_size))
