"""The HTTP/1.1 server of a pd_master: one listening socket, and the connections that come from it."""

import asyncio
import logging
import socket
import ssl
from functools import partial
from typing import NamedTuple

from services.common.certificates import Certificates
from services.pd_master.http_connection import App, Connections, HttpConnection

log = logging.getLogger(__name__)

_RENEW_S = 10.0
_SWEEP_S = 5.0
_BACKLOG = 4096
_TLS_GOODBYE_S = 2.0
"""For a client's answer to the end of its TLS session; without one the connection is cut."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    """0 takes a free one."""
    is_shared: bool = False
    """Other processes listen there too."""


class HttpServer:
    """Serves one application until it is stopped. States: bound -> serving -> draining -> stopped."""

    def __init__(
        self,
        app: App,
        address: Address,
        *,
        drain_s: float,
        stall_s: float,
        tls: Certificates | None = None,
        renew_s: float = _RENEW_S,
    ) -> None:
        """Binds at once, so that a taken port is an error of the start. Raises OSError.

        `stall_s`: how long a client may read nothing of what waits for it before its connection is closed. `renew_s`:
        how often to look whether the certificate has been replaced.
        """
        self._tls, self._renew_s, self._drain_s = tls, renew_s, drain_s
        self._socket = _listen(address, stall_s)
        self.port: int = self._socket.getsockname()[1]
        """The port it listens on, or did until it was stopped."""
        self._shown = tls.current() if tls else None
        self._context = _context(tls) if tls else None
        self._connections = Connections(app)
        self._started = asyncio.Event()
        self._stop = asyncio.Event()

    async def serve(self) -> None:
        """Runs until `stop`, then until running answers have ended or the drain time is over."""
        server = await asyncio.get_running_loop().create_server(
            partial(HttpConnection, self._connections),
            sock=self._socket,
            backlog=_BACKLOG,
            ssl=self._context,
            ssl_shutdown_timeout=_TLS_GOODBYE_S if self._context else None,
        )
        self._started.set()
        works = [self._sweep()] if self._tls is None else [self._sweep(), self._renew(self._tls)]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await self._stop.wait()
        finally:
            server.close()
            for task in tasks:
                task.cancel()
        await self._connections.drain(self._drain_s)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self._connections.close_idle()

    async def _renew(self, tls: Certificates) -> None:
        """New connections get the certificate that the files hold: the TLS context is changed in its place. Files that
        are replaced just then may not load; the next look takes them."""
        while True:
            await asyncio.sleep(self._renew_s)
            if (pems := tls.current()) is not self._shown and self._context is not None:
                try:
                    self._context.load_cert_chain(tls.files.cert, tls.files.key)
                except (OSError, ssl.SSLError) as error:
                    log.warning("the renewed certificate is not shown yet: %s", error)
                else:
                    self._shown = pems

    async def started(self) -> None:
        """Returns when connections are accepted."""
        await self._started.wait()

    def stop(self) -> None:
        """Stop accepting; running answers go on to their end."""
        self._stop.set()


def _context(tls: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.files.cert, tls.files.key)
    return context


def _listen(address: Address, stall_s: float) -> socket.socket:
    """Accepted connections inherit the options. The kernel itself ends one on which nothing is acknowledged or whose
    window stays shut for the stall time (R15); the handler then sees a client that went away."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if address.is_shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the request's own deadline ends it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
    try:
        listener.bind((address.host, address.port))
    except OSError:
        listener.close()
        raise
    return listener
