"""HTTP as the API's handlers see it: a call with a body, one reply or one event stream. A thin layer over ASGI.

No framework stands between uvicorn and a handler: what a router, a dependency resolver and a response class cost per
request and per write is what the gateway's budget is about.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from types import TracebackType
from typing import Any, TypeAlias, cast

from services.common.errors import RequestAbortedError, RequestTooLargeError

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

JSON = b"application/json"

_MAX_LABEL = 128
"""Characters of a client's own id that are kept."""


class ClientGoneError(RequestAbortedError):
    """The client closed the connection; nobody is there to read an answer."""

    code = "client_gone"


_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would turn a stream into one late block
]


class HttpCall:
    """One HTTP request and its answer. Made by the app, used by one handler."""

    __slots__ = (
        "_receive",
        "_send",
        "_unfinished",
        "finished",
        "headers_out",
        "method",
        "path",
        "scope",
        "started",
        "status",
    )

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._receive = receive
        self._send = send
        self._unfinished: _Begun | None = None
        """What `write_now` has begun and the client's socket could not take yet."""
        self.headers_out: Headers = []
        """Extra response headers, set before the reply starts."""
        self.started = False
        """The status line has left; an error can no longer become a status."""
        self.finished = False
        """Everything has been handed to the server."""
        self.status = 0

    def header(self, name: bytes) -> str:
        """A request header by its lower-case name; empty when absent."""
        for key, value in self.scope["headers"]:
            if key == name:
                return bytes(value).decode("latin-1")
        return ""

    @property
    def label(self) -> str:
        """The client's own id of this call, from `x-request-id`; empty when it sent none."""
        return self.header(b"x-request-id")[:_MAX_LABEL]

    def name_answer(self, request_id: str, header: bytes = b"x-request-id") -> None:
        """Say in a response header which request this is. The client's own id, where it sent one, has its place."""
        if header not in (name for name, _ in self.headers_out):
            self.headers_out.append((header, request_id.encode("latin-1")))  # as `header` has read a client's own

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises RequestTooLargeError, by the declared length before anything is read, and
        ClientGoneError when the client leaves in the middle of it."""
        declared = self.header(b"content-length")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError("the client went away while sending the request")
            part = message.get("body", b"")
            size += len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def disconnected(self) -> None:
        """Returns when the client has gone away. Only after the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        """Send the whole answer."""
        headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *self.headers_out]
        self.started = self.finished = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def reply_empty(self) -> None:
        """Answer with headers alone."""
        self.started = self.finished = True
        self.status = 204
        await self._send({"type": "http.response.start", "status": 204, "headers": self.headers_out})
        await self._send({"type": "http.response.body", "body": b""})

    async def start_events(self) -> None:
        """Begin a server-sent event stream with status 200."""
        self.started = True
        self.status = 200
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *self.headers_out]}
        )

    async def write(self, events: bytes) -> None:
        """Send encoded events; waits while the client's socket is full."""
        await self.flush()
        self.write_now(events)
        await self.flush()

    @property
    def is_full(self) -> bool:
        """Whether events wait for the client's socket: `write_now` is not allowed."""
        return self._unfinished is not None

    def write_now(self, events: bytes) -> bool:
        """Send encoded events from wherever the caller is, with no task in between. False: the socket cannot take them
        now, and they are sent by `flush`, or before whatever is written next."""
        assert self._unfinished is None, "asked before is_full was"
        message = {"type": "http.response.body", "body": events, "more_body": True}
        sending = cast(Coroutine[Any, Any, None], self._send(message))
        try:
            waits_for = sending.send(None)
        except StopIteration:
            return True
        self._unfinished = _Begun(sending, waits_for)
        return False

    async def end(self, events: bytes = b"") -> None:
        """Send the last events and end the stream."""
        await self.flush()
        self.finished = True
        await self._send({"type": "http.response.body", "body": events})

    async def flush(self) -> None:
        """Finish what `write_now` has begun; waits while the client's socket is full."""
        if self._unfinished is not None:
            try:
                await self._unfinished
            finally:
                self._unfinished = None


class _Begun:
    """A coroutine that was run up to its first wait, for a task to go on with."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:  # noqa: ANN401 - the loop's own
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits_for
        while True:
            try:
                waits_for = self._coroutine.send(None)
            except StopIteration:
                return
            yield waits_for


class UntilDisconnect:
    """Ends the block with ClientGoneError as soon as the client goes away, whatever the block waits for."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await self._call.disconnected()
        if not self._call.finished:  # the server reports the end of a complete answer the same way
            self._gone = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if self._gone:
            self._task.uncancel()
            if kind is asyncio.CancelledError:
                raise ClientGoneError("the client went away") from None


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the request body is larger than {max_bytes} bytes")
