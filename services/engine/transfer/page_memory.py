"""Kinds of page memory. The rest of the transfer does not know host from device (`device_memory`)."""

import zlib
from typing import Any, Protocol, TypeAlias

import numpy as np

Buffer: TypeAlias = Any
"""1-D uint8 that slices without copying and that UCXX takes: a numpy array (host) or a torch CUDA tensor (device).
UCXX refuses torch CPU tensors, which have neither the buffer protocol nor `__cuda_array_interface__`."""

_ALIGNMENT_BYTES = 4096
_PATTERN_PERIOD = 65521
"""A prime, so that a pattern shifted by any power of two differs."""


class PageMemory(Protocol):
    """Where pages live and how their bytes are checked."""

    on_device: bool

    def allocate(self, num_bytes: int) -> Buffer:
        """One block of uint8, touched, so that its first use costs nothing later."""
        ...

    def bind_thread(self) -> None:
        """Called first on each thread that calls UCX."""
        ...

    def fill(self, buffer: Buffer, seed: int) -> None:
        """Write a pattern that depends on `seed` and on the position."""
        ...

    def checksum(self, buffer: Buffer) -> int:
        """CRC-32 of the bytes."""
        ...


class HostMemory:
    """numpy pages, aligned to the system's memory pages."""

    on_device = False

    def allocate(self, num_bytes: int) -> Buffer:
        """See PageMemory."""
        raw = np.zeros(num_bytes + _ALIGNMENT_BYTES, dtype=np.uint8)
        raw.fill(0)  # zeros() alone maps nothing: this touches every page
        offset = -raw.ctypes.data % _ALIGNMENT_BYTES
        return raw[offset : offset + num_bytes]

    def bind_thread(self) -> None:
        """Nothing to bind on the host."""

    def fill(self, buffer: Buffer, seed: int) -> None:
        """See PageMemory."""
        buffer[:] = pattern(len(buffer), seed)

    def checksum(self, buffer: Buffer) -> int:
        """See PageMemory. zlib gives the GIL back meanwhile."""
        return zlib.crc32(memoryview(buffer))


def pattern(num_bytes: int, seed: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """[num_bytes] uint8 that depends on the seed and the position."""
    period = np.random.default_rng(seed).integers(0, 256, _PATTERN_PERIOD, dtype=np.uint8)
    return np.resize(period, num_bytes)
