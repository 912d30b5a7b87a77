"""Ports that a process may listen on."""

import contextlib
import socket

from services.common.options import ConfigError

LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Return distinct free TCP ports on loopback; all are held until all are found."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


def check_free(host: str, port: int, flag: str) -> None:
    """Raise ConfigError naming the flag when something listens on the port already; 0 is any free one.

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
            reason = error.strerror or str(error)
            raise ConfigError(
                f"{flag}: {host}:{port} cannot be used ({reason}); choose another, or 0 for any"
            ) from error
