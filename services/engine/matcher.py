"""Where one sequence stands in its grammar: a pure function of its output ids (R9), and what may come next.

What may come next needs the id before. A step's ids are copied to the host on their own, behind the sampling that drew
them, so waiting for them does not wait for the forward pass that has been launched since.
"""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from services.engine.ticket import Compiled

if TYPE_CHECKING:
    from xgrammar import GrammarMatcher

log = logging.getLogger(__name__)


class Drawn:
    """The ids of one step on their way to the host."""

    def __init__(self, ids: Tensor) -> None:
        """ids: [n], of any integer type, on the device."""
        self._ids: list[int] = []
        self._event: torch.cuda.Event | None = None
        if ids.is_cuda:
            self._host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
            self._host.copy_(ids, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = ids.clone()

    def read(self, at: int) -> int:
        """The id in one place; waits for the copy."""
        if not self._ids:
            if self._event is not None:
                self._event.synchronize()
            self._ids = self._host.tolist()
        return self._ids[at]


class Matcher:
    """Owned by the sequence's sampling rules. Read by the thread that makes a step's masks, and by nobody meanwhile."""

    def __init__(self, compiled: Compiled, outputs: list[int]) -> None:
        """Begin behind `outputs`, all the ids the sequence has."""
        self._matcher = compiled.matcher()
        self._drawn: tuple[Drawn, int] | None = None
        self.is_lost = False
        """Whether the grammar was left."""
        for token_id in outputs:
            self._accept(token_id)

    def drawn(self, ids: Drawn, at: int) -> None:
        """A token follows. It is read when the next mask is needed."""
        self._drawn = ids, at

    def catch_up(self) -> None:
        """Take the last token drawn, waiting for it."""
        if self._drawn is not None:
            ids, at = self._drawn
            self._drawn = None
            self._accept(ids.read(at))

    @property
    def guide(self) -> "GrammarMatcher | None":
        """What says what may come next, once caught up. None where nothing has to: behind the end any token may come,
        which is dropped; of one that `is_lost`, `allow_end` says it."""
        return None if self.is_lost or self._matcher.is_terminated() else self._matcher

    def dead_end(self, words: Tensor) -> None:
        """The grammar asks for what no token can say: `words`, one bit a token, then allow the end alone."""
        log.warning("the grammar allows no token here; the output ends")
        self.is_lost = True
        self.allow_end(words)

    def allow_end(self, words: Tensor) -> None:
        """Let `words`, one bit a token, allow the end alone."""
        words.zero_()
        for token_id in self._matcher.stop_token_ids:
            words[token_id // 32] |= torch.tensor(1 << (token_id % 32), dtype=torch.int64).to(torch.int32)

    def _accept(self, token_id: int) -> None:
        if self.is_lost or self._matcher.is_terminated():
            return
        if not self._matcher.accept_token(token_id):
            log.error("token %d was drawn against the grammar; the output ends", token_id)
            self.is_lost = True
