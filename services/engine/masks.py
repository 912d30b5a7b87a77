"""What the grammars of a step's rows allow, as bits made in a thread while the forward pass computes.

    plan the step ─ Masks: wait for the ids drawn last, fill a bit a token ──────┐
    launch the forward pass ── ... ── logits ── wait for the bits, rule tokens out ── draw

Filling releases the interpreter's lock. On a GPU the bits are copied to the device behind the logits, so that no step
waits for a round trip to the host.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from services.engine.matcher import Matcher

if TYPE_CHECKING:
    from xgrammar import BatchGrammarMatcher, GrammarMatcher

_T = TypeVar("_T")
_FILLERS = max(1, min(8, (os.cpu_count() or 1) // 4))
"""Threads that fill rows side by side where the forward pass runs on a device of its own; on a CPU they would take the
cores that it computes on."""

_threads = ThreadPoolExecutor(1, "masks")


class Masks:
    """Of some rows of logits, in an order; used by one step."""

    def __init__(self, matchers: dict[int, Matcher], num_rows: int, vocab_size: int, device: torch.device) -> None:
        """Begin to fill. matchers: by row; at least one."""
        self._matchers = matchers
        self._on_device = device.type == "cuda"
        shape = (num_rows, (vocab_size + 31) // 32)
        self._words = torch.full(shape, -1, dtype=torch.int32, pin_memory=self._on_device)
        self._work: Future[None] = _threads.submit(self._fill)

    def words(self) -> Tensor:
        """[num_rows, words] int32, on the host: bit i of word w is whether token 32 w + i may come. Waits for the bits,
        not for the logits."""
        self._work.result()
        return self._words

    def then(self, work: Callable[[Tensor], _T]) -> Future[_T]:
        """Go on with the bits in the thread that made them."""
        return _threads.submit(lambda: work(self.words()))

    @torch.inference_mode()  # of its own in each thread; the bits are made under the engine's
    def _fill(self) -> None:
        guides = {}
        for row, matcher in self._matchers.items():
            matcher.catch_up()
            guide = matcher.guide
            if guide is not None:
                guides[row] = guide
            elif matcher.is_lost:
                matcher.allow_end(self._words[row])
        if guides:
            fillers = _batch(_FILLERS if self._on_device else 1)
            fillers.batch_fill_next_token_bitmask(list(guides.values()), self._words, list(guides))
            self._end_dead_ends(guides)

    def _end_dead_ends(self, guides: "dict[int, GrammarMatcher]") -> None:
        """Where no token may come, of which the argmax would be any, the end may."""
        for row in np.flatnonzero(~self._words.numpy().any(axis=1)).tolist():
            if row in guides:
                self._matchers[row].dead_end(self._words[row])


@functools.cache
def _batch(num_threads: int) -> "BatchGrammarMatcher":
    from xgrammar import BatchGrammarMatcher  # where there is a matcher it has been imported

    return BatchGrammarMatcher(max_threads=num_threads)
