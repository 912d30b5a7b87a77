"""A step's way from host to device: arrays packed into pinned memory, sent together, or what is read first before the
rest.

Three pinned blocks take turns, each behind a mark of its last copy, so that packing never waits for a step in flight.
The device block is one: a copy is ordered behind the launches of the step before, which have read it.
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
ALIGN_INTS = 32
"""128 bytes: Triton compiles a kernel anew for pointers that are less aligned."""


class Staging:
    """Owned by the backend: `begin`, `put` for each array, `send`, then the launches that read them. More may be put
    and sent behind those."""

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
        self._used = self._sent = 0

    def begin(self) -> None:
        """Start packing a step; the copy three steps ago has long been made."""
        self._turn = (self._turn + 1) % _BLOCKS
        self._used = self._sent = 0
        self._marks[self._turn].wait()

    def put(self, values: Ints) -> Tensor:
        """Pack an array; return where it will be on the device, int32 of its shape, until the next step's launches.

        The first arrays of a step have the same addresses in every step where their sizes are the same. An array that
        does not fit is copied alone.
        """
        n, start = values.size, self._used
        if start + n > self._size:
            return self._alone(values)
        self.room(n)[:] = values.reshape(-1)
        if start > 0:
            return self._device_ints[start : start + n].view(values.shape)
        if self._first.shape != values.shape:
            self._first = self._device_ints[:n].view(values.shape)
        return self._first

    def room(self, num_ints: int) -> Ints:
        """Return where to pack so many ints, which fit: for one who knows already where they will be on the device."""
        start = self._used
        self._used = start + -(-num_ints // ALIGN_INTS) * ALIGN_INTS
        return self._views[self._turn][start : start + num_ints]

    def put_all(self, arrays: list[Ints]) -> list[Tensor]:
        """As `put` for each, in less time than so many calls; of their sizes, but flat."""
        sizes = [values.size for values in arrays]
        padded = [-(-n // ALIGN_INTS) * ALIGN_INTS for n in sizes]
        start, total = self._used, sum(padded)
        if start + total > self._size:
            return [self._alone(values).reshape(-1) for values in arrays]
        block, at = self._views[self._turn], start
        for values, n, room in zip(arrays, sizes, padded, strict=True):
            block[at : at + n] = values.reshape(-1)
            at += room
        self._used = at
        places = self._device_ints[start:at].split(padded)
        return [place if n == room else place[:n] for place, n, room in zip(places, sizes, padded, strict=True)]

    def send(self) -> None:
        """Launch the copy of what was put since the last one."""
        start, end, turn = self._sent, min(self._used, self._size), self._turn
        self._sent = end
        target, source = (
            self._copy(turn, end) if start == 0 else (self._device_ints[start:end], self._blocks[turn][start:end])
        )
        if end - start <= _KERNEL_INTS and not target.is_cpu:
            copy_ints(source, target)
        else:
            target.copy_(source, non_blocking=True)
        self._marks[turn].set_again(target.device)

    def _copy(self, turn: int, n: int) -> tuple[Tensor, Tensor]:
        """Where the first n ints of a block go, and the block."""
        copy = self._copies[turn]
        if copy is None or len(copy[0]) != n:
            copy = self._copies[turn] = self._device_ints[:n], self._blocks[turn][:n]
        return copy

    def _alone(self, values: Ints) -> Tensor:
        return upload(torch.from_numpy(np.ascontiguousarray(values)), self._device_ints.device)
