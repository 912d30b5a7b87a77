"""Find RoCE's GID index, tell UCX, then become a command: `python -m services.cli.rdma_gid sluice decode`.

A RoCE port has a table of GIDs, one for each address and RoCE version; a wrong entry gives connections that never come
up, or RoCE v1, which no router passes on. The entry of RoCE v2 with an address of this pod is the right one: a card
that several pods share lists the others' addresses too, and the pod's interface on the RDMA network is rarely the one
that Kubernetes knows. An InfiniBand port needs no index. A UCX_IB_GID_INDEX that is already set is left as it is.
"""

import array
import fcntl
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import NamedTuple

SYSFS = Path("/sys/class/infiniband")
VARIABLE = "UCX_IB_GID_INDEX"
_ROCE_V2 = "RoCE v2"
_SIOCGIFCONF = 0x8912
_MOST_INTERFACES = 256

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Gid(NamedTuple):
    """One entry of a port's table."""

    position: int
    type: str
    address: ipaddress.IPv6Address


def choose_gid(table: list[Gid], own: Set[Address]) -> int | None:
    """The index of the best RoCE v2 entry: one of `own`, any IPv4, a routable IPv6, a link-local one; or None."""
    usable = [gid for gid in table if gid.type == _ROCE_V2 and int(gid.address) != 0]
    return min(usable, key=lambda gid: (_rank(gid.address, own), gid.position)).position if usable else None


def _rank(address: ipaddress.IPv6Address, own: Set[Address]) -> int:
    mapped = address.ipv4_mapped
    if (mapped or address) in own and not address.is_link_local:
        return 0
    if mapped is not None:
        return 1
    return 3 if address.is_link_local else 2


def own_addresses() -> Set[Address]:
    """The addresses of all interfaces of this network namespace."""
    found: set[Address] = set(_ipv4_addresses())
    table = Path("/proc/net/if_inet6")
    lines = table.read_text().splitlines() if table.exists() else []
    return found | {ipaddress.IPv6Address(int(line.split()[0], 16)) for line in lines}


def _ipv4_addresses() -> Iterator[Address]:
    """From the kernel's list of struct ifreq: a name of 16 bytes and a sockaddr_in of 24."""
    block = array.array("B", bytes(40 * _MOST_INTERFACES))
    address, size = block.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked.fileno(), _SIOCGIFCONF, struct.pack("iL", size, address))
    (filled,) = struct.unpack_from("i", answer)
    yield from (ipaddress.IPv4Address(block[at + 20 : at + 24].tobytes()) for at in range(0, filled, 40))


def read_table(port: Path) -> list[Gid]:
    """The GID table of one port, `.../mlx5_0/ports/1`. Entries that the driver does not fill are left out."""
    return list(_entries(port))


def _entries(port: Path) -> Iterator[Gid]:
    for path in sorted((port / "gids").iterdir(), key=lambda path: int(path.name)):
        try:
            kind = (port / "gid_attrs" / "types" / path.name).read_text().strip()
            address = ipaddress.IPv6Address(path.read_text().strip())
        except OSError:  # an empty entry's type cannot be read: EINVAL
            continue
        yield Gid(int(path.name), kind, address)


def roce_ports(root: Path, devices: str | None) -> list[Path]:
    """The Ethernet ports among `devices` (UCX_NET_DEVICES: mlx5_0:1,mlx5_1:1), or of all devices."""
    named = [word.partition(":")[::2] for word in (devices or "").split(",") if word.strip() not in ("", "all")]
    if named:
        ports = [root / device.strip() / "ports" / (port or "1") for device, port in named]
    else:
        ports = sorted(root.glob("*/ports/*"))
    return [port for port in ports if _link_layer(port) == "Ethernet"]


def _link_layer(port: Path) -> str:
    path = port / "link_layer"
    return path.read_text().strip() if path.is_file() else ""


def find_index(root: Path, devices: str | None, own: Set[Address]) -> tuple[int | None, str]:
    """The index for UCX_IB_GID_INDEX, or None, and a sentence that says why."""
    ports = roce_ports(root, devices)
    if not ports:
        return None, "no RoCE port: InfiniBand needs no GID index"
    found = {f"{port.parent.parent.name}:{port.name}": choose_gid(read_table(port), own) for port in ports}
    if len(set(found.values())) > 1:
        return None, f"ports differ in their index ({found}); name one in ucxNetDevices, or set rdma.gidIndex"
    index = next(iter(found.values()))
    return index, f"{', '.join(found)}: " + ("no RoCE v2 entry" if index is None else f"RoCE v2 at index {index}")


def main(argv: list[str]) -> None:
    """Set the variable and exec the command."""
    if VARIABLE not in os.environ:
        index, why = find_index(SYSFS, os.environ.get("SLUICE_UCX_NET_DEVICES"), own_addresses())
        print(f"rdma: {why}", file=sys.stderr, flush=True)
        if index is not None:
            os.environ[VARIABLE] = str(index)
    os.execvp(argv[0], argv)  # the pod's own command line


if __name__ == "__main__":
    main(sys.argv[1:])
