"""What the grammars of a step's rows allow, as bits made in a thread while the forward pass computes.

    plan the step ─ Masks: wait for the ids drawn last, fill a bit a token ──────┐
    launch the forward pass ── ... ── logits ── apply: wait for the bits, mask them ── draw

Filling releases the interpreter's lock. On a GPU the bits are copied to the device behind the logits, so that no step
waits for a round trip to the host.
"""

import functools
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from services.engine.cpu_masks import CpuMasks, cpu_masks
from services.engine.matcher import Matcher

if TYPE_CHECKING:
    from xgrammar import BatchGrammarMatcher

_FILLERS = max(1, min(8, (os.cpu_count() or 1) // 4))
"""Threads that fill rows side by side where the forward pass runs on a device of its own; on a CPU they would take the
cores that it computes on."""

_threads = ThreadPoolExecutor(1, "masks")


class Masks:
    """Of one matrix of logits; used by one step."""

    def __init__(self, matchers: dict[int, Matcher], num_rows: int, vocab_size: int, device: torch.device) -> None:
        """Begin to fill. matchers: by the logits' row; at least one."""
        self._matchers = matchers
        self._on_device = device.type == "cuda"
        self._vocab_size = vocab_size
        shape = (num_rows, (vocab_size + 31) // 32)
        self._bits = torch.full(shape, -1, dtype=torch.int32, pin_memory=self._on_device)
        self._work: Future[CpuMasks | None] = _threads.submit(self._fill)

    @torch.inference_mode()  # of its own in each thread; the bits are made under the engine's
    def _fill(self) -> CpuMasks | None:
        guides = {}
        for row, matcher in self._matchers.items():
            matcher.catch_up()
            guide = matcher.guide(self._bits[row])
            if guide is not None:
                guides[row] = guide
        if guides:
            fillers = _batch(_FILLERS if self._on_device else 1)
            fillers.batch_fill_next_token_bitmask(list(guides.values()), self._bits, list(guides))
            self._end_dead_ends(list(guides))
        return None if self._on_device else cpu_masks(self._bits, list(self._matchers), self._vocab_size)

    def _end_dead_ends(self, rows: list[int]) -> None:
        """Where no token may come, of which the argmax would be any, the end may."""
        for i in np.flatnonzero(~self._bits.numpy()[rows].any(axis=1)):
            self._matchers[rows[i]].dead_end(self._bits[rows[i]])

    def apply(self, logits: Tensor) -> None:
        """Rule out in place, in logits [num_rows, vocab_size], float32, what the grammars do not allow; waits for the
        bits, not for the logits."""
        on_host = self._work.result()
        if on_host is None:
            apply_bits(logits, self._bits.to(logits.device, non_blocking=True))
        else:
            on_host.apply(logits)


def masks_of(
    matchers: list[Matcher | None], vocab_size: int, device: torch.device
) -> Masks | None:  # fmt: skip
    """Of logits whose rows have these matchers, in order; None where none has one."""
    found = {row: matcher for row, matcher in enumerate(matchers) if matcher is not None}
    return Masks(found, len(matchers), vocab_size, device) if found else None


def apply_bits(logits: Tensor, words: Tensor) -> None:
    """Rule out tokens whose bit is 0: bit i of word w, int32, is token 32 w + i. Nothing waits for the device."""
    bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words.device)
    logits.masked_fill_((bits & 1).eq(0).flatten(1)[:, : logits.shape[1]], -torch.inf)


@functools.cache
def _batch(num_threads: int) -> "BatchGrammarMatcher":
    from xgrammar import BatchGrammarMatcher  # where there is a matcher it has been imported

    return BatchGrammarMatcher(max_threads=num_threads)
