"""Who this worker is to others: its name, this start of it, and where it is reached."""

import hashlib
import socket
from typing import NamedTuple

from services.common.config import WorkerConfig, split_address
from services.common.identity import new_incarnation
from services.common.messages import WorkerRef

MAX_ID_BYTES = 64
_ANY_ADDRESS = {"0.0.0.0", "::", ""}


class WorkerIdentity(NamedTuple):
    """Fixed once the gRPC port is known, for the life of the process."""

    ref: WorkerRef
    host: str
    """Where peers reach this worker's listeners."""
    grpc_address: str
    """host:port of its services."""


def identify(config: WorkerConfig, grpc_port: int) -> WorkerIdentity:
    """The worker's id is its address, so one that comes back on the same address keeps it; the incarnation is new."""
    if config.advertise_address is not None:
        host, port = split_address(config.advertise_address, "--advertise-address")
    else:
        host, port = (_own_address() if config.host in _ANY_ADDRESS else config.host), grpc_port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return WorkerIdentity(WorkerRef(_bounded(f"{config.role}-{address}"), new_incarnation()), host, address)


def _bounded(name: str) -> str:
    """The name, or where it is longer than the KV transfer can carry, its beginning and a digest."""
    if len(name.encode()) <= MAX_ID_BYTES:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name.encode()[: MAX_ID_BYTES - 17].decode(errors='ignore')}-{digest}"


def _own_address() -> str:
    """The address of the interface that leads out, or the host's name where there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1 of RFC 5737
        except OSError:
            return socket.gethostname()
        host: str = probe.getsockname()[0]
        return host
