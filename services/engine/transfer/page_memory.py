"""Kinds of page memory. The rest of the transfer does not know host from device (`device_memory`)."""

import zlib
from typing import Any, Protocol, TypeAlias

import numpy as np

Buffer: TypeAlias = Any
"""1-D uint8 that slices without copying and that UCXX takes: a numpy array (host) or a torch CUDA tensor (device).
UCXX refuses torch CPU tensors, which have neither the buffer protocol nor `__cuda_array_interface__`."""

NOT_SHARED = b""
"""What `PageMemory.share` gives where no other process can map the block."""
_ALIGNMENT_BYTES = 4096
_PATTERN_PERIOD = 65521
"""A prime, so that a pattern shifted by any power of two differs."""


class MappingError(Exception):
    """A peer's pages cannot be mapped here, or a read of them failed."""


class Read(Protocol):
    """Bytes on their way out of a peer's page."""

    @property
    def completed(self) -> bool:
        """Whether they are there, or never will be; nothing reads or writes for it any more."""
        ...

    def check_error(self) -> None:
        """Raises MappingError when it is completed and they are not there."""
        ...


class Mapping(Protocol):
    """A peer's block of pages in this process's reach. Transfer thread."""

    num_bytes: int

    def read(self, start: int, num_bytes: int, into: Buffer) -> Read:
        """Start copying `num_bytes` from `start` on to the start of `into`. Reads complete in their order."""
        ...

    def close(self) -> None:
        """Let go of the block; no read is under way."""
        ...


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

    def share(self, block: Buffer) -> bytes:
        """What another process of this host may map an allocated block by, SHARE_BYTES at most, or NOT_SHARED."""
        ...

    def map(self, share: bytes) -> Mapping:
        """Map a peer's block. Raises MappingError where that cannot be."""
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

    def share(self, block: Buffer) -> bytes:  # noqa: ARG002
        """See PageMemory: UCX reads a peer's host memory in one copy itself."""
        return NOT_SHARED

    def map(self, share: bytes) -> Mapping:  # noqa: ARG002
        """See PageMemory."""
        raise MappingError("these pages are on the host")


def pattern(num_bytes: int, seed: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """[num_bytes] uint8 that depends on the seed and the position."""
    period = np.random.default_rng(seed).integers(0, 256, _PATTERN_PERIOD, dtype=np.uint8)
    return np.resize(period, num_bytes)
