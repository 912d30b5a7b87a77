"""A count in host memory that the device waits for, so that launches need not wait for what the host still makes.

The device stands still from `hold` on until the count is reached. Whoever raises it must do so whatever goes wrong, and
must not wait for anything that is launched behind.
"""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Condition
from typing import Any

import numpy as np
import torch

from services.engine.backends.cuda.clock import compute_stream, pinned

_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ: by the sign of the difference, so that counts may wrap."""


class HostFlag:
    """Raised by one thread, held for by another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._word = pinned(1, device)
        self._count = self._word.numpy().view(np.uint32)
        self._address = self._word.data_ptr()
        self._raised = Condition()

    def raise_to(self, count: int) -> None:
        """Let go on what holds for `count` or less; it sees what the host has written before."""
        with self._raised:
            self._count[0] = count & 0xFFFF_FFFF
            self._raised.notify_all()

    def hold(self, count: int) -> None:
        """Let what is launched on the compute stream from here on wait, on the device, for `raise_to(count)`. For a
        thread that has launched something before. On a CPU device, where launching computes, this call waits."""
        if self._device.type == "cuda":
            stream = compute_stream(self._device).cuda_stream
            status = _wait_value()(stream, self._address, count & 0xFFFF_FFFF, _AT_LEAST)
            if status != 0:
                raise RuntimeError(f"the device cannot wait for host memory: cuStreamWaitValue32 failed with {status}")
            return
        with self._raised:
            self._raised.wait_for(lambda: (int(self._count[0]) - count) & 0x8000_0000 == 0)


@cache
def _wait_value() -> Any:  # noqa: ANN401 - a foreign function
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    return wait
