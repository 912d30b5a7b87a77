"""Token sequences that an output must not hold. The last ids of the output are kept on the device, so that a step need
not wait for the host to learn the one before."""

import torch
from torch import Tensor

from services.engine.upload import upload

_ANY = -1
"""In front of a short sequence: whatever came there."""
_NOTHING = -2
"""Where the output has not begun: equal to no id."""


class BadSequences:
    """Owned by the sequence's sampling rules; a pure function of its output ids (R9)."""

    def __init__(self, sequences: tuple[tuple[int, ...], ...], outputs: list[int], device: torch.device) -> None:
        """sequences: at least one, none of them empty. outputs: all the ids there are."""
        depth = max(len(ids) for ids in sequences) - 1
        before = [[_ANY] * (depth + 1 - len(ids)) + list(ids[:-1]) for ids in sequences]
        recent = ([_NOTHING] * depth + outputs)[len(outputs) :]
        self._last = upload(torch.tensor([ids[-1] for ids in sequences], dtype=torch.int64), device)
        self._before = upload(torch.tensor(before, dtype=torch.int64), device)  # [n, depth]
        self._recent = upload(torch.tensor(recent, dtype=torch.int64), device)  # [depth]

    def rule_out(self, logits: Tensor) -> None:
        """Rule out in place, in logits [vocab_size], float32, what would complete a sequence."""
        begun = ((self._before == self._recent) | (self._before == _ANY)).all(-1)
        logits.index_add_(0, self._last, torch.where(begun, -torch.inf, 0.0))

    def drawn(self, token_id: Tensor) -> None:
        """A token, [1] int64 on the device, follows."""
        if len(self._recent):
            self._recent = torch.cat((self._recent[1:], token_id))
