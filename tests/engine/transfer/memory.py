"""Pages on the host or a device, by name; and pages that another process can map, as a device's are, where none is."""

import os
import tempfile
import time
from typing import Any

import numpy as np

from services.engine.transfer.page_memory import Buffer, HostMemory, MappingError, PageMemory

READ_S = 2e-3
"""How long a read of shared pages is under way: then it takes the bytes that are there."""


def page_memory(device: str) -> PageMemory:
    if device == "cpu":
        return HostMemory()
    if device == "shared":
        return SharedMemory()
    from services.engine.transfer.device_memory import DeviceMemory  # torch takes seconds to import

    return DeviceMemory(device)


class SharedMemory(HostMemory):
    """Blocks are files without a name, which a process of this machine finds by whose they are."""

    def __init__(self) -> None:
        self._files: list[Any] = []

    def allocate(self, num_bytes: int) -> Buffer:
        file = tempfile.TemporaryFile(dir="/dev/shm")  # noqa: SIM115 # open as long as its block
        file.truncate(num_bytes)
        self._files.append(file)
        return np.asarray(np.memmap(file, np.uint8, "r+"))

    def share(self, block: Buffer) -> bytes:
        return f"/proc/{os.getpid()}/fd/{self._files[-1].fileno()} {len(block)}".encode()

    def map(self, share: bytes) -> "FileMapping":
        path, num_bytes = share.rstrip(b"\0").decode().split()
        try:
            return FileMapping(np.memmap(path, np.uint8, "r"), int(num_bytes))
        except OSError as error:
            raise MappingError(str(error)) from error


class FileMapping:
    def __init__(self, block: Buffer, num_bytes: int) -> None:
        self._block: Buffer | None = block
        self.num_bytes = num_bytes

    def read(self, start: int, num_bytes: int, into: Buffer) -> "LateRead":
        assert self._block is not None, "read after close"
        return LateRead(self._block[start : start + num_bytes], into[:num_bytes])

    def close(self) -> None:
        assert self._block is not None, "closed twice"
        self._block = None


class LateRead:
    def __init__(self, source: Buffer, into: Buffer) -> None:
        self._source = source
        self._into = into
        self._due = time.monotonic() + READ_S
        self._is_done = False

    @property
    def completed(self) -> bool:
        if not self._is_done and time.monotonic() >= self._due:
            self._into[:] = self._source
            self._is_done = True
        return self._is_done

    def check_error(self) -> None:
        assert self._is_done
