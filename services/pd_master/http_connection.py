"""One client's HTTP/1.1 connection: its bytes become calls, one after another, and their answers bytes.

    idle --a request's head--> answering --the answer is complete, and the request--> idle, or the next that has come
      '--- silent for too long, or the server stops ---> closed <--- the client goes, or asked for one answer only ---'

What is written while the event loop handles one thing goes to the sockets together, at its end: the head of an answer
with its body, and the tokens of one worker's frame one socket after another, so that a client is not woken for each.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import httptools

from services.pd_master.api.http import HttpCall, RequestHead
from services.pd_master.api.response_head import Headers, response_head

log = logging.getLogger(__name__)

App: TypeAlias = Callable[[HttpCall], Coroutine[Any, Any, None]]

IDLE_S = 75.0
"""How long a connection may stay open without a request's whole head, or without more of its body."""
_MAX_HEAD_BYTES = 64 * 1024
_FRAMING = (b"content-length", b"transfer-encoding")
_MAX_DROPPED = 64 << 20
"""Bytes of a body behind its answer that are read, so that the client gets to the answer; then it is cut off."""
_MAX_UNSENT = 64
"""Connections that wait to be written to: with more, a long frame's first tokens would wait for its last."""


class Connections:
    """All connections of a server. Used on its event loop."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.is_stopping = False
        self._open: set[HttpConnection] = set()
        self._unsent: list[HttpConnection] = []
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._loop = asyncio.get_running_loop()

    def add(self, connection: "HttpConnection") -> None:
        """A client has come."""
        self._open.add(connection)
        self._none_left.clear()

    def remove(self, connection: "HttpConnection") -> None:
        """It is gone, and what it asked for has ended."""
        self._open.discard(connection)
        if not self._open:
            self._none_left.set()

    def will_send(self, connection: "HttpConnection") -> None:
        """It has something to send; it is told to when the event loop has handled what it handles now."""
        self._unsent.append(connection)
        if len(self._unsent) == 1:
            self._loop.call_soon(self._send_all)
        elif len(self._unsent) >= _MAX_UNSENT:
            self._send_all()

    def _send_all(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            connection.send()

    def close_idle(self) -> None:
        """Close those that have been silent for too long."""
        oldest = time.monotonic() - IDLE_S
        for connection in list(self._open):
            if connection.idle_since is not None and connection.idle_since < oldest:
                connection.close()

    async def drain(self, drain_s: float) -> None:
        """Close each connection as soon as it has nothing in work, and after `drain_s` all of them."""
        self.is_stopping = True
        for connection in list(self._open):
            connection.close_when_idle()
        try:
            async with asyncio.timeout(drain_s):
                await self._none_left.wait()
        except TimeoutError:
            log.warning("%d connections outlast the drain", len(self._open))
            for connection in list(self._open):
                connection.abort()
            await self._none_left.wait()


class HttpConnection(asyncio.Protocol):
    """Made by the server for each client. It is the `Wire` of its calls."""

    def __init__(self, connections: Connections) -> None:
        self.is_full = False
        self.idle_since: float | None = time.monotonic()
        """Since when more of a request is waited for; None while one is answered."""
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: Headers = []
        self._head_bytes = 0
        self._is_in_head = False
        self._num_dropped = 0
        self._incoming: HttpCall | None = None
        """The call whose request is being received, or was last."""
        self._current: HttpCall | None = None
        self._next: deque[HttpCall] = deque()
        self._task: asyncio.Task[None] | None = None
        self._unsent = b""
        self._room: asyncio.Future[None] | None = None
        self._is_lost = False
        self._is_resuming = False

    # --------------------------------------------------------------------------------------------- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        if self._connections.is_stopping:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - whatever the reason
        """The client is gone."""
        self._is_lost = True
        self.resume_writing()
        self._next.clear()
        if self._current is None:
            self._connections.remove(self)
        else:
            self._current.lost()

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of several."""
        if self._incoming is None or self._incoming.is_whole:
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            ours = isinstance(error, httptools.HttpParserCallbackError)
            if ours and not isinstance(error.__context__, httptools.HttpParserInvalidURLError):
                raise
            self._refuse(400)
        else:
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._refuse(431)

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
            else:
                return

    def _without_offer(self) -> bytes:
        """Another protocol is offered and not taken. The parser leaves the request there, so a new one takes over, with
        as much of the head as it needs to find the body's end."""
        self._parser, self._is_resuming = httptools.HttpRequestParser(self), True
        framing = [name + b": " + value for name, value in self._headers if name in _FRAMING]
        return b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""])

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.is_full = True

    def resume_writing(self) -> None:
        """It does again."""
        self.is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._go_on()

    # ------------------------------------------------------------------------------------------------ from the parser

    def on_message_begin(self) -> None:
        """A request."""
        self._url, self._headers, self._is_in_head = b"", [], True

    def on_url(self, url: bytes) -> None:
        """A part of its target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it; what stands behind a body as one is none (RFC 9110, 6.5.1)."""
        if self._is_in_head:
            self._headers.append((name.lower(), value))
        else:
            self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """Its head is whole. It waits for the answers to those before it, and while one waits no more is read."""
        self._head_bytes = self._num_dropped = 0
        self._is_in_head = False
        if self._is_resuming:
            self._is_resuming = False
            return
        parser = self._parser
        is_http10 = parser.get_http_version() == "1.0"
        path = (httptools.parse_url(self._url).path or b"/").decode("latin-1")
        head = RequestHead(
            method=parser.get_method().decode(),
            path=unquote(path) if "%" in path else path,
            headers=self._headers,
            keep_alive=(parser.should_keep_alive() or parser.should_upgrade())
            and not (is_http10 or self._connections.is_stopping),
            is_http10=is_http10,
        )
        self._incoming = HttpCall(head, self)
        self._next.append(self._incoming)
        self._go_on()
        self._note_idle()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        assert self._incoming is not None, "behind its head"
        self._incoming.feed(body)
        self._num_dropped += len(body) * self._incoming.finished
        if self._num_dropped > _MAX_DROPPED:
            self.close()
        self._note_idle()

    def on_message_complete(self) -> None:
        """Its end."""
        assert self._incoming is not None, "behind its head"
        if self._parser.should_upgrade():
            return
        self._incoming.complete()
        self._note_idle()

    def _note_idle(self) -> None:
        is_busy = self._current is not None and self._current.is_whole
        self.idle_since = None if is_busy else time.monotonic()

    def _refuse(self, status: int) -> None:
        """What has come is no request, or no body of one; what came before is answered, if that is still to be done."""
        if self._incoming is not None and not self._incoming.is_whole:
            if self._incoming.finished:
                self.close()
            else:
                self._incoming.fail()
                self._answer_last()
        elif self._current is None and not self._next:
            self.write(response_head(status, [(b"content-length", b"0")], keep_alive=False))
            self.close()
        else:
            self._answer_last()

    def _answer_last(self) -> None:
        """Nothing that comes from now on is of interest."""
        self._transport.pause_reading()
        self.close_when_idle()

    # ------------------------------------------------------------------------------------------------------- the calls

    def _go_on(self) -> None:
        """Start the next call, unless one is in work or the client does not take what it was sent."""
        if self._is_lost:
            return
        if self._current is None and self._next and not self.is_full:
            self._start(self._next.popleft())
        if self._next:
            self._transport.pause_reading()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _start(self, call: HttpCall) -> None:
        self._current = call
        self._task = asyncio.create_task(self._connections.app(call))
        self._task.add_done_callback(self._answered)

    def _answered(self, _: object) -> None:
        call, self._current, self._task = self._current, None, None
        assert call is not None, "its task has ended"
        if self._is_lost:
            self._connections.remove(self)
        elif not call.finished or not call.keep_alive:
            self.close()
        else:
            self._go_on()
        self._note_idle()

    # -------------------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Send, in order."""
        if self._unsent:
            self._unsent += data
        else:
            self._unsent = data
            self._connections.will_send(self)

    def send(self) -> None:
        """Hand what was written to the socket."""
        unsent, self._unsent = self._unsent, b""
        if unsent and not self._is_lost:
            self._transport.write(unsent)

    async def drained(self) -> None:
        """Returns when the socket takes more."""
        while self.is_full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # -------------------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Close behind what was written."""
        self.send()
        self._transport.close()

    def close_when_idle(self) -> None:
        """Close now, or behind the answer that is in work."""
        if self._current is None:
            self.close()
            return
        self._current.keep_alive = False
        self._next.clear()

    def abort(self) -> None:
        """End it as it is."""
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()
