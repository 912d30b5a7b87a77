"""Ports that a process may listen on."""

import errno
import itertools
import random
import socket
from pathlib import Path

from services.common.options import ConfigError, reason_of

LOOPBACK = "127.0.0.1"
_PORTS = range(10_000, 65_536)


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports of loopback that nobody has.

    They are outside the range from which outgoing connections get theirs: one of those might be taken by a connection
    before the process that is told of it comes to bind it. Raises ConfigError where there are not so many.
    """
    outgoing = outgoing_ports()
    ports = [port for port in _PORTS if port not in outgoing] or list(_PORTS)
    first = random.randrange(len(ports))  # two that ask at once get different ones
    found = list(itertools.islice(filter(is_free, ports[first:] + ports[:first]), count))
    if len(found) < count:
        raise ConfigError(f"{LOOPBACK} has {len(found)} free ports; {count} are needed")
    return found


def outgoing_ports() -> range:
    """Return what the system gives to connections that name no port of their own."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except FileNotFoundError:  # not Linux: what IANA sets aside for it
        return range(49_152, 65_536)
    return range(int(first), int(last) + 1)


def is_free(port: int) -> bool:
    """Tell whether nobody has this port of loopback, be it for a connection that has ended."""
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def check_free(host: str, port: int, flag: str) -> None:
    """Raise ConfigError naming the flag when the port cannot be had, and the host where it is not ours; 0 is any port.

    Asked before a server binds: gRPC would write a line of its own about it and not say which port it wanted.
    """
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a connection that lingers after its server's end is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(f"--host: {host!r} is no address of this machine ({reason_of(error)})") from error
            problem = f"{host}:{port} cannot be used ({reason_of(error)}); choose another, or 0 for any"
            raise ConfigError(f"{flag}: {problem}") from error
