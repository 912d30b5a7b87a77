"""What the grammars of a step's rows allow, as bits made in a thread while the forward pass computes.

    launch the forward pass ── ... ── logits ── hold for the bits, rule tokens out ── draw
    Masks: wait for the ids drawn last, show them to the grammars, fill a bit a token ──┘

Each of the three lets go of the interpreter's lock once for all rows: taking it back from the engine's loop can last a
tenth of a millisecond.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from services.engine.arrays import Ints
from services.engine.matcher import Drawn, Matcher

if TYPE_CHECKING:
    from xgrammar import BatchGrammarMatcher

_T = TypeVar("_T")
FILLERS = max(1, min(8, (os.cpu_count() or 1) // 4))
"""Threads that fill rows side by side where the forward pass runs on a device of its own; on a CPU they would take the
cores that it computes on."""

_threads = ThreadPoolExecutor(1, "masks")


class Masks:
    """Of some rows; used by one step."""

    def __init__(
        self, matchers: dict[int, Matcher], words: Ints, num_threads: int = 1, done: Callable[[], object] | None = None
    ) -> None:
        """Begin to write the bits of each row that has a matcher into `words` [num_rows, words], int32: bit i of word w
        is whether token 32 w + i may come. `done` is called when no more is written, also where that has failed."""
        self._matchers, self._words, self._num_threads, self._done = matchers, words, num_threads, done
        shown = [(each, *each.pending) for each in matchers.values() if each.pending is not None]
        for matcher, _, _ in shown:
            matcher.pending = None
        self._work = _threads.submit(self._make, shown)

    def words(self) -> Ints:
        """Wait for the bits; raises what has gone wrong with them."""
        self._work.result()
        return self._words

    def then(self, work: Callable[[Ints], _T]) -> Future[_T]:
        """Go on with the bits in the thread that made them."""
        return _threads.submit(lambda: work(self.words()))

    def _make(self, shown: list[tuple[Matcher, Drawn, int]]) -> None:
        try:
            self._show([(matcher, ids.read()[at]) for matcher, ids, at in shown if matcher.goes_on])
            self._fill([row for row, matcher in self._matchers.items() if matcher.goes_on])
            words = self._words.view(np.uint32)
            for row, matcher in self._matchers.items():
                if not matcher.goes_on:
                    matcher.say_end(words[row])
        finally:
            if self._done is not None:
                self._done()

    def _show(self, drawn: list[tuple[Matcher, int]]) -> None:
        if not drawn:
            return
        batch = _batch(self._num_threads)
        accepted = batch.batch_accept_token([each.grammar for each, _ in drawn], [token_id for _, token_id in drawn])
        for (matcher, token_id), is_accepted in zip(drawn, accepted, strict=True):
            matcher.took(token_id, accepted=is_accepted)

    def _fill(self, rows: list[int]) -> None:
        if not rows:
            return
        guides = [self._matchers[row].grammar for row in rows]
        _batch(self._num_threads).batch_fill_next_token_bitmask(guides, self._words, rows)
        # Where no token may come, of which the argmax would be any, the end may.
        allows_none = self._words.view(np.uint32).max(axis=1) == 0
        for row in np.flatnonzero(allows_none).tolist() if allows_none.any() else ():
            if row in self._matchers and self._matchers[row].goes_on:
                self._matchers[row].dead_end()


@functools.cache
def _batch(num_threads: int) -> "BatchGrammarMatcher":
    from xgrammar import BatchGrammarMatcher  # where there is a matcher it has been imported

    return BatchGrammarMatcher(max_threads=num_threads)
