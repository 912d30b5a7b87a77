"""Kinds of wire between two engines, from slow to fast, and how UCX's transport names map to them."""

from collections.abc import Iterable
from enum import Enum


class Lane(Enum):
    """The wire that carries payloads. Compare with `is_slower_than`; UNKNOWN is slower than all."""

    UNKNOWN = "unknown"
    TCP = "tcp"
    SHARED_MEMORY = "shared_memory"
    RDMA = "rdma"
    CUDA_IPC = "cuda_ipc"

    def is_slower_than(self, other: "Lane") -> bool:
        """Whether this lane comes before `other` in the order of the members."""
        order = list(Lane)
        return order.index(self) < order.index(other)


_HOST_LANES = {
    Lane.RDMA: ("rc", "dc", "ud", "srd", "gga"),
    Lane.SHARED_MEMORY: ("posix", "sysv", "cma", "xpmem", "knem", "self"),
    Lane.TCP: ("tcp",),
}
_DEVICE_LANES = {Lane.CUDA_IPC: ("cuda_ipc",), **_HOST_LANES}


def allows_cuda_ipc(tls: str) -> bool:
    """Whether a value of UCX_TLS, such as "rc,cuda_ipc,sm,tcp" or "^tcp", leaves that transport in."""
    names = set(tls.removeprefix("^").split(","))
    return bool(names & {"all", "cuda", "cuda_ipc"}) != tls.startswith("^")


def fastest_lane(transports: Iterable[str], *, device_pages: bool) -> Lane:
    """The fastest lane among an endpoint's transports that can move a page of this kind.

    `transports`: UCX transport names, e.g. "rc_mlx5", "cuda_ipc", "tcp". UCX moves large messages by the fastest
    transport it has for the memory, so host pages never count cuda_ipc, and device pages prefer it.
    """
    names = list(transports)
    lanes = _DEVICE_LANES if device_pages else _HOST_LANES
    for lane, prefixes in lanes.items():
        if any(name == prefix or name.startswith(prefix + "_") for name in names for prefix in prefixes):
            return lane
    return Lane.UNKNOWN
