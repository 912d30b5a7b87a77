"""Where one sequence stands in its grammar: a pure function of its output ids (R9), and the mask that follows.

The mask of a token needs the id before it. That id is copied to the host on its own, behind the sampling that drew it,
so waiting for it does not wait for the forward pass that has been launched since.
"""

import logging

import torch
from torch import Tensor

from services.engine.ticket import Compiled

log = logging.getLogger(__name__)


class Matcher:
    """Owned by the sequence's sampling rules."""

    def __init__(self, compiled: Compiled, outputs: list[int]) -> None:
        """Begin behind `outputs`, all the ids the sequence has."""
        self._matcher = compiled.matcher()
        self._drawn: _Drawn | None = None
        self._is_lost = False
        for token_id in outputs:
            self._accept(token_id)

    def drawn(self, token_id: Tensor) -> None:
        """A token, [1] int64 on the device, follows. It is read when the next mask is needed."""
        self._drawn = _Drawn(token_id)

    def fill(self, bitmask: Tensor, row: int) -> None:
        """Set a row of an int32 bitmask, on the host, to what may come next; waits for the last token drawn."""
        if self._drawn is not None:
            self._accept(self._drawn.read())
            self._drawn = None
        if self._is_lost:
            _allow_only(bitmask[row], self._matcher.stop_token_ids)
        elif not self._matcher.is_terminated():  # else the step computes past the end and its token is dropped
            self._matcher.fill_next_token_bitmask(bitmask, row)

    def _accept(self, token_id: int) -> None:
        if self._is_lost or self._matcher.is_terminated():
            return
        if not self._matcher.accept_token(token_id):
            log.error("token %d was drawn against the grammar; the output ends", token_id)
            self._is_lost = True


class _Drawn:
    """A token id on its way to the host."""

    def __init__(self, token_id: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if token_id.is_cuda:
            self._host = torch.empty(1, dtype=token_id.dtype, pin_memory=True)
            self._host.copy_(token_id, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = token_id.clone()

    def read(self) -> int:
        if self._event is not None:
            self._event.synchronize()
        return int(self._host)


def apply_masks(logits: Tensor, matchers: dict[int, Matcher]) -> None:
    """Rule out in place, in rows of logits [n, vocab_size], what the grammar of each row with one does not allow.

    One bit a token is copied to the device, behind the one wait for the tokens drawn last.
    """
    bitmask = torch.full((len(logits), (logits.shape[1] + 31) // 32), -1, dtype=torch.int32, pin_memory=logits.is_cuda)
    for row, matcher in matchers.items():
        matcher.fill(bitmask, row)
    if logits.is_cuda:
        apply_bits(logits, bitmask.to(logits.device, non_blocking=True))
        return
    from xgrammar import apply_token_bitmask_inplace  # where there is a matcher it has been imported

    apply_token_bitmask_inplace(logits, bitmask, indices=list(matchers))


def apply_bits(logits: Tensor, words: Tensor) -> None:
    """Rule out tokens whose bit is 0: bit i of word w, int32, is token 32 w + i. Nothing waits for the device."""
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)
    logits.masked_fill_((bits & 1).eq(0).flatten(1)[:, : logits.shape[1]], -torch.inf)


def _allow_only(words: Tensor, token_ids: list[int]) -> None:
    words.zero_()
    for token_id in token_ids:
        words[token_id // 32] |= torch.tensor(1 << (token_id % 32), dtype=torch.int64).to(torch.int32)
