"""uvicorn as this process runs it: with the process's own signal handling and logs, on httptools."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn

from services.common.certificates import Certificates

log = logging.getLogger(__name__)

_RENEW_S = 10.0


class _QuietServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process with the signal's status."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals belong to `main`."""
        yield


class HttpServer:
    """Serves one ASGI application on one listening socket until it is stopped."""

    def __init__(
        self,
        app: Any,  # noqa: ANN401
        host: str,
        port: int,
        *,
        drain_s: float,
        stall_s: float,
        tls: Certificates | None = None,
        renew_s: float = _RENEW_S,
    ) -> None:
        """Binds at once, so that a taken port is an error of the start. Port 0 takes a free one. Raises OSError.

        `stall_s`: how long a client may read nothing of what waits for it before its connection is closed. `renew_s`:
        how often to look whether the certificate has been replaced.
        """
        self._tls, self._renew_s = tls, renew_s
        self._socket = _listen(host, port, stall_s)
        self.port: int = self._socket.getsockname()[1]
        """The port it listens on, or did until it was stopped."""
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=True,
            backlog=4096,
            timeout_keep_alive=75,
            ssl_certfile=tls.files.cert if tls else None,
            ssl_keyfile=tls.files.key if tls else None,
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
        self._config = config
        self._server = _QuietServer(config)

    async def serve(self) -> None:
        """Runs until `stop`, then until running answers have ended or the drain time is over."""
        renewing = asyncio.create_task(self._renew(self._tls)) if self._tls else None
        await self._server.serve(sockets=[self._socket])
        if renewing is not None:
            renewing.cancel()

    async def _renew(self, tls: Certificates) -> None:
        """New connections get the certificate that the files hold: the TLS context is changed in its place. Files that
        are replaced just then may not load; the next look takes them."""
        shown = tls.current()
        while True:
            await asyncio.sleep(self._renew_s)
            if (pems := tls.current()) is not shown and self._config.ssl is not None:
                try:
                    self._config.ssl.load_cert_chain(tls.files.cert, tls.files.key)
                except (OSError, ssl.SSLError) as error:
                    log.warning("the renewed certificate is not shown yet: %s", error)
                else:
                    shown = pems

    async def started(self) -> None:
        """Returns when connections are accepted."""
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        """Stop accepting; running answers go on to their end."""
        self._server.should_exit = True


def _listen(host: str, port: int, stall_s: float) -> socket.socket:
    """Accepted connections inherit the options. The kernel itself ends one on which nothing is acknowledged or whose
    window stays shut for the stall time (R15); the handler then sees a client that went away."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the request's own deadline ends it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(stall_s * 1000))
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
