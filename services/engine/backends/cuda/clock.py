"""What the backend does to the device's time line: copies, events and captured graphs.

On a CPU device, where Triton's interpreter runs the kernels for tests, launching is synchronous: there is nothing to
wait for, and a graph is the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_Pool = Any  # torch's own handle of a graph memory pool, or None


@cache
def compute_stream(device: torch.device) -> torch.cuda.Stream:
    """Everything but `SideStream` is launched on one stream; asking for it takes as long as recording an event."""
    return torch.cuda.current_stream(device)


class Mark:
    """A point on the compute stream, or on another `stream`; the backend's `Copy`."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(stream or compute_stream(device))

    def set_again(self, device: torch.device) -> None:
        """Make it what is launched on the compute stream by now; an event of its own would cost more."""
        if self._event is not None:
            self._event.record(compute_stream(device))

    def done(self) -> bool:
        """Whether the device has passed it."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait for the device to pass it; other threads run meanwhile."""
        if self._event is not None:
            self._event.synchronize()

    def hold(self) -> None:
        """Let what is launched from here on, on the current stream, wait for it on the device."""
        if self._event is not None:
            self._event.wait()


class SideStream:
    """Copies beside the compute stream, in the order of the calls."""

    def __init__(self, device: torch.device, *, is_urgent: bool = False) -> None:
        """`is_urgent`: its kernels get multiprocessors as they fall free, before those of the compute stream do."""
        self._device = device
        self._stream = torch.cuda.Stream(device, -1 if is_urgent else 0) if device.type == "cuda" else None

    def launch(self, work: Callable[[], object], after: Mark) -> Mark:
        """Launch `work` once the device has passed `after`; returns its own mark."""
        with torch.cuda.stream(self._stream):
            after.hold()
            work()
            return Mark(self._device, self._stream)

    def copy(self, source: Tensor, target: Tensor, after: Mark) -> Mark:
        """Copy once the device has passed `after`; returns the copy's own mark. Host memory must be pinned."""
        return self.launch(lambda: target.copy_(source, non_blocking=True), after)


def pinned_bytes(num_bytes: int, device: torch.device) -> Tensor:
    """Host memory `[num_bytes]` uint8, not written."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def pinned(num_ints: int, device: torch.device) -> Tensor:
    """Host memory `[num_ints]` int32 that the device copies from and to by itself."""
    return torch.zeros(num_ints, dtype=torch.int32, pin_memory=device.type == "cuda")


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Copy from the host without waiting for the device."""
    if device.type == "cpu":
        return values.clone()
    return values.pin_memory().to(device, non_blocking=True)


def download(values: Tensor) -> Tensor:
    """Copy to the host; it is there once a later Mark is passed."""
    return values.to("cpu", non_blocking=True) if values.is_cuda else values.clone()


def captured(launches: Callable[[], object], device: torch.device, pool: _Pool) -> Callable[[], object]:
    """Run `launches` once, which compiles them, and return what repeats them: a CUDA graph, of memory pool `pool`."""
    if device.type != "cuda":
        return launches
    launches()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        launches()
    return graph.replay
