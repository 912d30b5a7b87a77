"""The masks of grammars on rows of logits that lie on the device, which waits for their bits by itself.

    host      take a block, launch: forward pass, hold, copy, rule out, draw ─ the results before ─ the next step
    thread    ... fill the block as soon as the ids drawn last are there ── raise the flag
    device    ... forward pass ...                                        holds until then ─ copy ─ rule out ─ draw

So a step is launched whole before its bits are known, as one without grammars is before its ids are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.masks import rule_out
from services.engine.arrays import Ints
from services.engine.backends.cuda.clock import Mark, pinned
from services.engine.backends.cuda.host_flag import HostFlag
from services.engine.backends.cuda.staging import Staging
from services.engine.masks import FILLERS, Masks
from services.engine.matcher import Drawn, Matcher


@dataclass(frozen=True, slots=True)
class Guided:
    """Rows under grammars, in the order of their bits."""

    matchers: list[Matcher]
    rows: Ints
    """Of the logits."""
    outputs: list[int]
    """Which of the ids drawn is each row's."""

    def drawn(self, ids: Drawn) -> None:
        """A token of each row follows: for the next masks."""
        for matcher, output in zip(self.matchers, self.outputs, strict=True):
            matcher.pending = ids, output


class _Block:
    """Bits of some rows: where they are made, and where the device has them."""

    def __init__(self, num_rows: int, num_words: int, device: torch.device) -> None:
        self.host = pinned(num_rows * num_words, device).view(num_rows, num_words)
        self.on_device = torch.empty(self.host.shape, dtype=torch.int32, device=device)
        self.is_taken = False
        """From `begin` until the copy is launched."""
        self.read = Mark(device)
        """Behind the copy."""

    @property
    def is_free(self) -> bool:
        return not self.is_taken and self.read.done()


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Being made; of some rows of one matrix of logits, for one step."""

    masks: Masks
    guided: Guided
    rows: Tensor  # [n] int32, on the device
    block: _Block
    hold: Callable[[], None]
    """Lets the device wait for the bits."""

    def apply(self, logits: Tensor) -> None:
        """Rule out in place, in logits [num_rows, vocab_size], what the grammars do not allow."""
        n, block = len(self.rows), self.block
        self.hold()
        words = block.on_device[:n]
        words.copy_(block.host[:n], non_blocking=True)
        block.read.set_again(logits.device)
        block.is_taken = False
        rule_out(logits, self.rows, words)


class MaskBlocks:
    """Owned by the runner. Blocks are taken by turns, each for some rows of one step."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape, self._device = (max_rows, (vocab_size + 31) // 32), device
        self._flag = HostFlag(device)
        self._num_begun = 0
        self._last: Masks | None = None
        self._blocks: deque[_Block] = deque()
        """The longest unused first."""

    def begin(self, guided: Guided, staging: Staging) -> RowMasks:
        """Begin to make the bits of a step's rows."""
        n, block = len(guided.matchers), self._take(len(guided.matchers))
        self._num_begun += 1
        number = self._num_begun
        matchers = dict(enumerate(guided.matchers))
        self._last = Masks(matchers, block.host[:n].numpy(), FILLERS, partial(self._flag.raise_to, number))
        return RowMasks(self._last, guided, staging.put(guided.rows), block, partial(self._flag.hold, number))

    def settle(self) -> None:
        """Wait until the device holds for nothing: before calls in which the driver may wait for the device."""
        if self._last is not None:
            self._last.words()
            self._last = None

    def _take(self, num_rows: int) -> _Block:
        if self._blocks and self._blocks[0].is_free and len(self._blocks[0].host) >= num_rows:
            block = self._blocks.popleft()
        else:
            self.settle()
            block = _Block(max(num_rows, self._shape[0]), self._shape[1], self._device)
        block.is_taken = True
        self._blocks.append(block)
        return block
