"""The one copy a step from host to device: arrays packed into pinned memory, sent together.

Three pinned blocks take turns, each behind a mark of its copy, so that packing never waits for a step in flight. The
device block is one: a copy is ordered behind the launches of the step before, which have read it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.indexed import copy_ints
from services.engine.arrays import Ints
from services.engine.backends.cuda.clock import Mark, pinned, upload

_BLOCKS = 3
_KERNEL_INTS = 1 << 16
"""Up to 256 KiB are copied by a kernel, which is there earlier; the copy engine takes what is more."""
_ALIGN_INTS = 32
"""128 bytes: Triton compiles a kernel anew for pointers that are less aligned."""


class Staging:
    """Owned by the backend: `begin`, `put` for each array, `send`, then the launches that read them."""

    def __init__(self, num_ints: int, device: torch.device) -> None:
        self._size = num_ints  # the length of a tensor costs ten times as much to ask for
        self._device_ints = torch.zeros(num_ints, dtype=torch.int32, device=device)
        self._blocks = [pinned(num_ints, device) for _ in range(_BLOCKS)]
        self._views: list[Ints] = [block.numpy() for block in self._blocks]
        self._marks = [Mark(device) for _ in range(_BLOCKS)]
        self._first = self._device_ints[:0]
        """The device's view of what was packed first, which seldom changes its shape."""
        self._copies: list[tuple[Tensor, Tensor] | None] = [None] * _BLOCKS
        """What each block was copied from and to last time: in a step without prompts, the same again."""
        self._turn = 0
        self._used = 0

    def begin(self) -> None:
        """Start packing a step; the copy three steps ago has long been made."""
        self._turn = (self._turn + 1) % _BLOCKS
        self._used = 0
        self._marks[self._turn].wait()

    def put(self, values: Ints) -> Tensor:
        """Pack an array; return where it will be on the device, int32 of its shape, until the next step's launches.

        The first arrays of a step have the same addresses in every step where their sizes are the same. An array that
        does not fit is copied alone.
        """
        n, start = values.size, self._used
        if start + n > self._size:
            return upload(torch.from_numpy(np.ascontiguousarray(values)), self._device_ints.device)
        self._views[self._turn][start : start + n] = values.reshape(-1)
        self._used = start + -(-n // _ALIGN_INTS) * _ALIGN_INTS
        if start > 0:
            return self._device_ints[start : start + n].view(values.shape)
        if self._first.shape != values.shape:
            self._first = self._device_ints[:n].view(values.shape)
        return self._first

    def send(self) -> None:
        """Launch the copy."""
        n, turn = min(self._used, self._size), self._turn
        copy = self._copies[turn]
        if copy is None or len(copy[0]) != n:
            copy = self._copies[turn] = self._device_ints[:n], self._blocks[turn][:n]
        target, source = copy
        if n <= _KERNEL_INTS and not target.is_cpu:
            copy_ints(source, target)
        else:
            target.copy_(source, non_blocking=True)
        self._marks[turn].set_again(target.device)
