"""HTTP as the API's handlers see it: a call with a body, one reply or one event stream.

No framework stands between the connection and a handler: what a router, a dependency resolver and a response class cost
per request and per write is what the gateway's budget is about. `pd_master.http_connection` makes the calls and carries
their bytes.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol

from services.common.errors import InvalidRequestError, RequestAbortedError, RequestTooLargeError
from services.pd_master.api.response_head import Headers, response_head

JSON = b"application/json"

_MAX_LABEL = 128
"""Characters of a client's own id that are kept."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a buffering proxy would turn a stream into one late block
]


class ClientGoneError(RequestAbortedError):
    """The client closed the connection; nobody is there to read an answer."""

    code = "client_gone"


class Wire(Protocol):
    """The client's connection, as a call writes to it."""

    is_full: bool
    """The socket does not take what is written as fast as it comes. Nothing is lost, but it should wait."""

    def write(self, data: bytes) -> None:
        """Send bytes, in order; dropped when the client is gone."""
        ...

    async def drained(self) -> None:
        """Returns when the socket takes more, or the client is gone."""
        ...


class RequestHead(NamedTuple):
    """What comes before a request's body."""

    method: str
    path: str
    headers: Headers
    """Names in lower case."""
    keep_alive: bool = True
    """Another request may follow on the connection."""
    is_http10: bool = False
    """Such a client knows no chunks: the end of the connection ends a stream."""


class HttpCall:
    """One HTTP request and its answer. Made and fed by the connection, used by one handler."""

    __slots__ = (
        "_head",
        "_is_http10",
        "_more",
        "_parts",
        "_size",
        "_waits",
        "_wire",
        "finished",
        "headers_out",
        "is_broken",
        "is_gone",
        "is_whole",
        "keep_alive",
        "method",
        "on_gone",
        "path",
        "started",
        "status",
    )

    def __init__(self, head: RequestHead, wire: Wire) -> None:
        self._head = head
        self._is_http10 = head.is_http10
        self._wire = wire
        self.method = head.method
        self.path = head.path
        self.keep_alive = head.keep_alive
        """The connection stays open behind the answer. May become false until that starts."""
        self._parts: list[bytes] = []
        self._size = 0
        self._waits = False
        self._more: asyncio.Future[None] | None = None
        self.is_whole = False
        """All of the request has come."""
        self.is_broken = False
        """What came as its body is none."""
        self.is_gone = False
        """The client has closed the connection."""
        self.on_gone: Callable[[], None] | None = None
        """Told when it does so before the answer is complete."""
        self.headers_out: Headers = []
        """Extra response headers, set before the reply starts."""
        self.started = False
        """The status line has left; an error can no longer become a status."""
        self.finished = False
        """Everything has been handed to the connection."""
        self.status = 0

    # ------------------------------------------------------------------------------------------- from the connection

    def feed(self, part: bytes) -> None:
        """More of the body. What comes behind a complete answer is of no interest."""
        if not self.finished:
            self._parts.append(part)
            self._size += len(part)
            self._wake()

    def complete(self) -> None:
        """The body ends."""
        self.is_whole = True
        self._wake()

    def fail(self) -> None:
        """What comes is no body."""
        self.is_broken, self.keep_alive = True, False
        self._wake()

    def lost(self) -> None:
        """The client is gone."""
        self.is_gone = True
        self._wake()
        if self.on_gone is not None and not self.finished:
            self.on_gone()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    # ------------------------------------------------------------------------------------------------------- request

    def header(self, name: bytes) -> str:
        """A request header by its lower-case name; empty when absent."""
        for key, value in self._head.headers:
            if key == name:
                return value.decode("latin-1")
        return ""

    @property
    def label(self) -> str:
        """The client's own id of this call, from `x-request-id`; empty when it sent none."""
        return self.header(b"x-request-id")[:_MAX_LABEL]

    @property
    def size(self) -> int:
        """Bytes of the body so far."""
        return self._size

    async def body(self, max_bytes: int) -> bytes:
        """The whole body. Raises RequestTooLargeError, by the declared length before anything is read, and
        ClientGoneError when the client leaves in the middle of it."""
        declared = self.header(b"content-length")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise _too_large(max_bytes)
        if self._is_waited_for:
            self._wire.write(_CONTINUE)
        while True:
            if self._size > max_bytes:
                raise _too_large(max_bytes)
            if self.is_whole:
                return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            if self.is_broken:
                raise InvalidRequestError("the request's body is not framed as HTTP/1.1 has it")
            if self.is_gone:
                raise ClientGoneError("the client went away while sending the request")
            self._more = asyncio.get_running_loop().create_future()
            await self._more

    @property
    def _is_waited_for(self) -> bool:
        """Whether the client keeps the body until it is told to go on. HTTP/1.0 has no such expectation."""
        waits = not self.is_whole and not self._parts and not self._is_http10
        return waits and self.header(b"expect").lower() == "100-continue"

    # -------------------------------------------------------------------------------------------------------- answer

    def name_answer(self, request_id: str, header: bytes = b"x-request-id") -> None:
        """Say in a response header which request this is. The client's own id, where it sent one, has its place."""
        if header not in (name for name, _ in self.headers_out):
            self.headers_out.append((header, request_id.encode("latin-1")))  # as `header` has read a client's own

    async def reply(self, status: int, body: bytes, content_type: bytes = JSON) -> None:
        """Send the whole answer."""
        length = str(len(body)).encode()
        head = self._begin(status, [(b"content-type", content_type), (b"content-length", length)])
        self.finished = True
        self._wire.write(head if self.method == "HEAD" else head + body)

    async def reply_empty(self) -> None:
        """Answer with headers alone."""
        self.finished = True
        self._wire.write(self._begin(204, []))

    async def start_events(self) -> None:
        """Begin a server-sent event stream with status 200."""
        if self._is_http10:
            self.keep_alive = False
            self._wire.write(self._begin(200, _STREAM_HEADERS))
        else:
            self._wire.write(self._begin(200, [*_STREAM_HEADERS, (b"transfer-encoding", b"chunked")]))

    def _begin(self, status: int, headers: Headers) -> bytes:
        self.started = True
        self.status = status
        if self._is_waited_for:
            self.keep_alive = False  # whether the body still comes is the client's to choose
        return response_head(status, [*headers, *self.headers_out], keep_alive=self.keep_alive)

    @property
    def is_full(self) -> bool:
        """Whether the client's socket takes less than has been written, or `write` still waits for it: more would be
        too much now, or out of its order."""
        return self._waits or self._wire.is_full

    def write_now(self, events: bytes) -> None:
        """Send encoded events from wherever the caller is, with no task in between."""
        if not events:
            return  # an empty chunk would be the end
        self._wire.write(events if self._is_http10 else b"%x\r\n%b\r\n" % (len(events), events))

    async def write(self, events: bytes) -> None:
        """Send encoded events; waits while the client's socket is full."""
        if self._wire.is_full:
            self._waits = True
            await self._wire.drained()
            self._waits = False
        self.write_now(events)

    async def end(self, events: bytes = b"") -> None:
        """Send the last events and end the stream."""
        if events:
            await self.write(events)
        self.finished = True
        if not self._is_http10:
            self._wire.write(b"0\r\n\r\n")


class UntilDisconnect:
    """Ends the block with ClientGoneError as soon as the client goes away, whatever the block waits for."""

    def __init__(self, call: HttpCall) -> None:
        self._call = call
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._call.on_gone = self._leave
        if self._call.is_gone:
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.on_gone = None
        if self._gone:
            self._task.uncancel()
            if kind is asyncio.CancelledError:
                raise ClientGoneError("the client went away") from None


def _too_large(max_bytes: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the request body is larger than the {max_bytes} bytes of --max-body-bytes")
