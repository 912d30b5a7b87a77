"""Plain copies of a message's size between two devices: what no transfer can be faster than."""

from __future__ import annotations

import time

import numpy as np
import torch

from services.engine.transfer.page_memory import Buffer


class Copier:
    """Copies from a transfer page to memory of another device, or of the same."""

    def __init__(self, source: Buffer, peer_device: str) -> None:
        """`source`: numpy on the host, or a torch tensor; as much is allocated on `peer_device`."""
        self._source = torch.from_numpy(source) if isinstance(source, np.ndarray) else source
        self._target = torch.zeros(len(source), dtype=torch.uint8, device=peer_device)

    def copy(self, num_bytes: int, num_messages: int) -> float:
        """Seconds for `num_messages` copies in a row, until the last byte is there."""
        self._wait()
        started = time.perf_counter()
        for _ in range(num_messages):
            self._target[:num_bytes].copy_(self._source[:num_bytes], non_blocking=True)
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        for tensor in (self._source, self._target):
            if tensor.device.type == "cuda":
                torch.cuda.synchronize(tensor.device)
