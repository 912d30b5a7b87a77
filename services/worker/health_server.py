"""`/health /liveness /readiness /metrics` of a worker: a little HTTP on asyncio, since workers carry no framework.

Readiness is no circle (R14): it asks whether the model is loaded and the engine lives, not whether masters do.
Liveness is never stricter than readiness: a worker that drains or has a slow step is alive.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 5.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page(NamedTuple):
    """One answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


def verdict(problem: str | None) -> Page:
    """200 `ok`, or 503 with the reason."""
    return Page(200, b"ok\n") if problem is None else Page(503, problem.encode() + b"\n")


class HealthServer:
    """Serves pages by path on one port; used by the worker's main and nobody else. Closed by `stop`."""

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; port 0 takes a free one. Returns the port. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port)
        chosen: int = self._server.sockets[0].getsockname()[1]
        return chosen

    async def stop(self) -> None:
        """Stop listening; answers under way go out."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(self._answer(head), head_only=head.startswith(b"HEAD ")))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            log.debug("a health request broke off")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _REQUEST_TIMEOUT_S)

    def _answer(self, head: bytes) -> Page:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page(400, b"not HTTP/1\n")
        method, target, _ = words
        if method not in {"GET", "HEAD"}:
            return Page(405, b"only GET and HEAD\n")
        page = self._pages.get(target.split("?", 1)[0])
        return Page(404, b"one of " + " ".join(self._pages).encode() + b"\n") if page is None else page()


def _response(page: Page, *, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else page.body)
