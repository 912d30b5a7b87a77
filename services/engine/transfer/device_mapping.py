"""A peer's device pages, mapped by CUDA's inter-process handles and read by copies of our own.

UCX moves such pages the same way, but for each one it matches messages, makes requests and asks the driver several
times on both sides: more than the copy takes. Here a page costs its receiver one copy and one event on a stream.

The driver keeps a block's memory until every process that has mapped it lets go: a read from a peer that has died ends
as if it lived. So whoever lost a peer unmaps its block, else a worker that starts anew finds no room on the card.
"""

import ctypes
import logging
import struct
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from services.engine.transfer.page_memory import NOT_SHARED, Buffer, MappingError

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SHARE = struct.Struct("<16s 64s Q Q")
_NON_BLOCKING, _NO_TIMING, _LAZY_PEER_ACCESS = 1, 2, 1
_SUCCESS, _NOT_READY = 0, 600


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class _Driver:
    """Calls of CUDA's driver, in the context that is current on the calling thread."""

    def __init__(self) -> None:
        waits = ctypes.CDLL("libcuda.so.1")
        # Calls that return at once keep the interpreter: giving it away and waiting for it again takes longer.
        quick = ctypes.PyDLL("libcuda.so.1")
        self.range_of = _of(waits, "cuMemGetAddressRange_v2", POINTER(c_uint64), POINTER(c_size_t), c_uint64)
        self.export = _of(waits, "cuIpcGetMemHandle", POINTER(_Handle), c_uint64)
        self.open = _of(waits, "cuIpcOpenMemHandle_v2", POINTER(c_uint64), _Handle, c_uint)
        self.close = _of(waits, "cuIpcCloseMemHandle", c_uint64)
        self.make_stream = _of(waits, "cuStreamCreate", POINTER(c_void_p), c_uint)
        self.make_event = _of(waits, "cuEventCreate", POINTER(c_void_p), c_uint)
        self.wait = _of(waits, "cuStreamSynchronize", c_void_p)
        self.end_stream = _of(waits, "cuStreamDestroy_v2", c_void_p)
        self.end_event = _of(waits, "cuEventDestroy_v2", c_void_p)
        self.copy = _of(quick, "cuMemcpyDtoDAsync_v2", c_uint64, c_uint64, c_size_t, c_void_p)
        self.record = _of(quick, "cuEventRecord", c_void_p, c_void_p)
        self.query = _of(quick, "cuEventQuery", c_void_p)


def _of(library: ctypes.CDLL, name: str, *arguments: object) -> "ctypes._NamedFuncPointer":
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, c_int
    return function  # type: ignore[no-any-return]


@cache
def _driver() -> _Driver:
    return _Driver()


def _check(what: str, status: int) -> None:
    if status != _SUCCESS:
        raise MappingError(f"{what}: CUDA error {status}")


def _host() -> bytes:
    """The same in all processes of this host, whatever container they run in, since it was started."""
    return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))


def share(address: int, num_bytes: int) -> bytes:
    """See `PageMemory.share`. Memory of CUDA's asynchronous allocator has no handle."""
    driver, start, size, handle = _driver(), c_uint64(), c_size_t(), _Handle()
    _check("cuMemGetAddressRange", driver.range_of(byref(start), byref(size), address))
    if driver.export(byref(handle), start) != _SUCCESS:
        return NOT_SHARED
    return _SHARE.pack(_host(), bytes(handle), address - start.value, num_bytes)


class _Reading:
    """A `Read`: an event behind the copy, used again for another once it is completed."""

    __slots__ = ("_driver", "_event", "_free", "_status")

    def __init__(self, driver: _Driver, event: c_void_p, free: list[c_void_p], status: int) -> None:
        self._driver = driver
        self._event = event
        self._free = free
        self._status = status

    @property
    def completed(self) -> bool:
        """See Read."""
        if self._status == _NOT_READY:
            self._status = self._driver.query(self._event)
            if self._status != _NOT_READY:
                self._free.append(self._event)
        return self._status != _NOT_READY

    def check_error(self) -> None:
        """See Read."""
        _check("reading a peer's page", self._status)


class DeviceMapping:
    """See Mapping. Made on the transfer thread, whose context the copies run in."""

    def __init__(self, share: bytes) -> None:
        """Raises MappingError when the block is of another host or out of this device's reach."""
        host, raw, offset, self.num_bytes = _SHARE.unpack(share)
        if host != _host():
            raise MappingError("it is on another host")
        self._driver = _driver()
        self._base, self._stream = c_uint64(), c_void_p()
        handle = _Handle.from_buffer_copy(raw)
        _check("cuIpcOpenMemHandle", self._driver.open(byref(self._base), handle, _LAZY_PEER_ACCESS))
        self._start = self._base.value + offset
        status = self._driver.make_stream(byref(self._stream), _NON_BLOCKING)
        if status != _SUCCESS:
            self._driver.close(self._base)
        _check("cuStreamCreate", status)
        self._free: list[c_void_p] = []

    def read(self, start: int, num_bytes: int, into: Buffer) -> _Reading:
        """See Mapping."""
        driver, event = self._driver, self._free.pop() if self._free else self._make_event()
        status = driver.copy(into.data_ptr(), self._start + start, num_bytes, self._stream)
        if status == _SUCCESS:
            status = driver.record(event, self._stream)
        return _Reading(driver, event, self._free, _NOT_READY if status == _SUCCESS else status)

    def try_out(self, into: Buffer) -> None:
        """Fill `into` with the block's first bytes, and wait for them. Raises MappingError, all being let go of, where
        the two devices cannot reach each other after all."""
        read = self.read(0, len(into), into)
        status = self._driver.wait(self._stream)
        try:
            _check("cuStreamSynchronize", status)
            assert read.completed
            read.check_error()
        except MappingError:
            self.close()
            raise

    def close(self) -> None:
        """See Mapping."""
        driver = self._driver
        for event in self._free:
            driver.end_event(event)
        driver.end_stream(self._stream)
        if (status := driver.close(self._base)) != _SUCCESS:
            log.warning("a lost peer's pages stay mapped: CUDA error %d", status)

    def _make_event(self) -> c_void_p:
        event = c_void_p()
        _check("cuEventCreate", self._driver.make_event(byref(event), _NO_TIMING))
        return event
