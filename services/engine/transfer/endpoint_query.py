"""Asks UCX which transports an endpoint uses.

UCXX has no call for it, so `ucp_ep_query` of the libucp that UCXX has already loaded is called through ctypes. The
structures are those of UCX's public header `ucp/api/ucp.h` (1.12 and later), which keeps them compatible by a field
mask and an entry size.
"""

import ctypes
from pathlib import Path

_FIELD_TRANSPORTS = 1 << 3
_MAX_TRANSPORTS = 64


class _TransportEntry(ctypes.Structure):
    _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))


class _Transports(ctypes.Structure):
    _fields_ = (
        ("entries", ctypes.POINTER(_TransportEntry)),
        ("num_entries", ctypes.c_uint),
        ("entry_size", ctypes.c_size_t),
    )


class _EndpointAttributes(ctypes.Structure):
    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local_sockaddr", ctypes.c_byte * 128),
        ("remote_sockaddr", ctypes.c_byte * 128),
        ("transports", _Transports),
        ("user_data", ctypes.c_void_p),
    )


def endpoint_transports(endpoint_handle: int) -> list[str]:
    """Transport names (e.g. "tcp", "rc_mlx5", "cuda_ipc") of a live endpoint, given its `ucp_ep_h` as an integer.

    Empty when UCX does not tell, or when no libucp is loaded in this process.
    """
    library = _loaded_libucp()
    if library is None:
        return []
    entries = (_TransportEntry * _MAX_TRANSPORTS)()
    attributes = _EndpointAttributes(field_mask=_FIELD_TRANSPORTS)
    attributes.transports = _Transports(entries, _MAX_TRANSPORTS, ctypes.sizeof(_TransportEntry))
    if library.ucp_ep_query(ctypes.c_void_p(endpoint_handle), ctypes.byref(attributes)) != 0:
        return []
    found = entries[: attributes.transports.num_entries]
    return [entry.transport.decode() for entry in found if entry.transport]


def _loaded_libucp() -> ctypes.CDLL | None:
    """The very library UCXX uses: another copy would not know its endpoints."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libucp.so" in line or "libucp-" in line:
            return ctypes.CDLL(line.split()[-1])
    return None
