"""Where one sequence stands in its grammar: a pure function of its output ids (R9).

What may come next needs the id before. A step's ids are copied to the host on their own, behind the sampling that drew
them, so waiting for them does not wait for the forward pass that has been launched since.
"""

import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.engine.arrays import Ints
from services.engine.ticket import Compiled

log = logging.getLogger(__name__)

Words = NDArray[np.uint32]
"""[words]: bit i of word w is whether token 32 w + i may come."""


class Drawn:
    """The ids of one step, in the order they were drawn in, on their way to the host."""

    def __init__(self, ids: Ints, wait: Callable[[], object] | None = None) -> None:
        """ids: [n] on the host, written by the time that `wait` returns."""
        self._ids, self._wait = ids, wait
        self._known: list[int] | None = None

    def read(self) -> list[int]:
        """All of them; waits for them to come. For any thread."""
        if self._known is None:
            if self._wait is not None:
                self._wait()
            self._known = self._ids.tolist()
        return self._known


class Matcher:
    """Owned by the sequence's sampling rules. But for `pending`, it is read and changed by the thread that makes a
    step's masks, and by nobody meanwhile."""

    def __init__(self, compiled: Compiled, outputs: list[int]) -> None:
        """Begin behind `outputs`, all the ids the sequence has."""
        self.grammar = compiled.matcher()
        self._ends = frozenset(self.grammar.stop_token_ids)
        self.pending: tuple[Drawn, int] | None = None
        """Where the token drawn last will be, until it is taken in for the next mask. Of the engine's loop."""
        self.is_lost = False
        """Whether the grammar was left: the end alone may come."""
        self.goes_on = True
        """Whether the grammar says what may come next. Behind its end any token may, which is dropped."""
        for token_id in outputs:
            if self.goes_on:
                self.took(token_id, accepted=self.grammar.accept_token(token_id))

    def took(self, token_id: int, *, accepted: bool) -> None:
        """The grammar has been shown a token."""
        if not accepted:
            log.error("token %d was drawn against the grammar; the output ends", token_id)
            self._lose()
        elif token_id in self._ends:
            self.goes_on = not self.grammar.is_terminated()

    def dead_end(self) -> None:
        """The grammar asks for what no token can say."""
        log.warning("the grammar allows no token here; the output ends")
        self._lose()

    def say_end(self, words: Words) -> None:
        """Write what may come where the grammar does not say it."""
        words.fill(0 if self.is_lost else ~np.uint32(0))
        for token_id in self._ends if self.is_lost else ():
            words[token_id // 32] |= np.uint32(1 << (token_id % 32))

    def _lose(self) -> None:
        self.is_lost, self.goes_on = True, False
