"""HTTP/1.1 as clients may speak it, byte by byte, against a server with a small application."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.common.errors import InvalidRequestError, RequestTooLargeError
from services.pd_master import http_connection
from services.pd_master.api.http import ClientGoneError, HttpCall, UntilDisconnect
from services.pd_master.http_server import Address, HttpServer

GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"


class Server:
    """The server, and what its application was told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.seen: asyncio.Queue[str] = asyncio.Queue()
        self.http = HttpServer(self.app, Address("127.0.0.1", 0), drain_s=60, stall_s=60)
        self.serving = asyncio.create_task(self.http.serve())

    async def app(self, call: HttpCall) -> None:
        self.seen.put_nowait(call.path)
        if call.path == "/hold":
            try:
                async with UntilDisconnect(call):
                    await self.go_on.wait()
            except ClientGoneError:
                self.seen.put_nowait("gone")
        if call.path == "/large":
            await call.reply(200, bytes(1 << 20))
            return
        if call.path == "/trailed":
            await call.body(1000)
            await call.reply(200, call.header(b"x-late").encode() or b"none")
            return
        if call.path == "/events":
            await call.start_events()
            for event in (b"one", b"two"):
                await call.write(event)
            await call.end(b"three")
            return
        try:
            body = await call.body(1000)
        except RequestTooLargeError:
            await call.reply(413, b"large")
            return
        except InvalidRequestError:
            await call.reply(400, b"broken")
            return
        await call.reply(200, f"{call.method} {call.path} ".encode() + body)

    async def ask(self, *parts: bytes) -> bytes:
        """All that comes back until the server closes, for bytes sent a part at a time."""
        reader, writer = await self.connect()
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            answer = await reader.read()
        writer.close()
        return answer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.http.port)


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.http.started()
    yield server
    server.go_on.set()
    server.http.stop()
    await asyncio.wait_for(server.serving, 60)


def last(request: bytes) -> bytes:
    """The same, asking for no more behind it."""
    return request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)


async def test_requests_sent_at_once_are_answered_in_order(server: Server) -> None:
    requests = [GET.replace(b"/echo", b"/%d" % number) for number in range(20)]
    answer = await server.ask(b"".join(requests[:-1]) + last(requests[-1]))
    assert [int(part.split()[0][1:]) for part in answer.split(b"GET ")[1:]] == list(range(20))


async def test_request_in_single_bytes_and_body_in_chunks(server: Server) -> None:
    body = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    head = b"POST /a%20b?q=1 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    reader, writer = await server.connect()
    for byte in head + body:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await reader.read()).endswith(b"POST /a b abcde")
    writer.close()


async def test_head_gets_the_length_and_no_body(server: Server) -> None:
    answer = await server.ask(last(GET.replace(b"GET", b"HEAD")))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert (b"content-length: 11" in head, body) == (True, b"")


async def test_stream_is_chunked_and_the_connection_stays(server: Server) -> None:
    answer = await server.ask(GET.replace(b"/echo", b"/events"), last(GET))
    assert b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\nHTTP/1.1 200 OK" in answer


async def test_client_of_http_1_0_gets_its_stream_plain_and_the_connection_closed(server: Server) -> None:
    answer = await server.ask(b"GET /events HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    assert b"connection: close" in answer
    assert answer.endswith(b"\r\n\r\nonetwothree")


async def test_client_that_asks_first_is_told_to_send_its_body(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    async with asyncio.timeout(60):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        head = await reader.readuntil(b"\r\n\r\n")
        assert (head.startswith(b"HTTP/1.1 200"), await reader.readexactly(9)) == (True, b"POST / hi")
    writer.close()


async def test_offer_of_another_protocol_is_not_taken_and_the_body_still_read(server: Server) -> None:
    """As Java's client offers it with its first request."""
    offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIA\r\n"
    post = b"POST / HTTP/1.1\r\nhost: x\r\n" + offer
    in_chunks = post + b"transfer-encoding: chunked\r\n\r\n2\r\nho\r\n0\r\n\r\n"
    parts = [post + b"content-length: 2\r\n\r\nhi", in_chunks[:-9], in_chunks[-9:], post + b"\r\n", last(GET)]
    answer = await server.ask(*parts)
    bodies = [part.split(b"HTTP/1.1")[0] for part in answer.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"POST / hi", b"POST / ho", b"POST / ", b"GET /echo "]


async def test_answer_before_the_body_has_come_leaves_the_connection_usable(server: Server) -> None:
    post = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n"
    answer = await server.ask(post + b"x" * 100, b"x" * 4900 + last(GET))
    assert b"HTTP/1.1 413" in answer
    assert answer.endswith(b"GET /echo ")


async def test_body_that_turns_out_too_large_is_refused(server: Server) -> None:
    post = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert b"HTTP/1.1 413" in await server.ask(post, b"400\r\n" + b"x" * 1024 + b"\r\n", b"0\r\n\r\n")


@pytest.mark.parametrize(
    "bad", [b"nonsense\r\n\r\n", b"GET http://:x:/ HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02"]
)
async def test_what_is_no_request_gets_400_and_the_end(server: Server, bad: bytes) -> None:
    assert (await server.ask(bad)).startswith(b"HTTP/1.1 400 ")


async def test_head_without_end_is_refused(server: Server) -> None:
    answer = await server.ask(b"GET / HTTP/1.1\r\n", *[b"a: " + b"b" * 9000 + b"\r\n"] * 8)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_nonsense_behind_a_request_takes_nothing_from_its_answer(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(GET.replace(b"/echo", b"/hold") + b"nonsense\r\n\r\n")
    assert await server.seen.get() == "/hold"
    server.go_on.set()
    async with asyncio.timeout(60):
        assert (await reader.read()).endswith(b"GET /hold ")
    writer.close()


async def test_client_that_leaves_ends_its_call(server: Server) -> None:
    _, writer = await server.connect()
    writer.write(GET.replace(b"/echo", b"/hold"))
    assert await server.seen.get() == "/hold"
    writer.close()
    assert await asyncio.wait_for(server.seen.get(), 60) == "gone"


async def test_silent_client_is_let_go_and_a_waiting_one_is_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, partial, waiting = [await server.connect() for _ in range(3)]
    partial[1].write(b"POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nab")
    waiting[1].write(GET.replace(b"/echo", b"/hold"))
    assert {await server.seen.get(), await server.seen.get()} == {"/echo", "/hold"}
    monkeypatch.setattr(http_connection, "IDLE_S", -1.0)
    server.http._connections.close_idle()
    async with asyncio.timeout(60):
        assert await silent[0].read() == b""
        assert await partial[0].read() == b""
    server.go_on.set()
    assert (await waiting[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    for _, writer in (silent, partial, waiting):
        writer.close()


async def test_every_connection_of_many_is_written_to_though_all_are_at_once(server: Server) -> None:
    """As many as are written to together, and some more."""
    connections = [await server.connect() for _ in range(200)]
    for _, writer in connections:
        writer.write(GET.replace(b"/echo", b"/hold"))
    for _ in connections:
        await asyncio.wait_for(server.seen.get(), 60)
    server.go_on.set()
    async with asyncio.timeout(60):
        for reader, writer in connections:
            assert (await reader.readuntil(b"GET /hold ")).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_drain_lets_the_answer_end_and_says_that_nothing_follows() -> None:
    server = Server()
    await server.http.started()
    idle, busy = await server.connect(), await server.connect()
    busy[1].write(GET.replace(b"/echo", b"/hold"))
    await server.seen.get()
    server.http.stop()
    async with asyncio.timeout(60):
        assert await idle[0].read() == b""
        server.go_on.set()
        answer = await busy[0].read()
        await server.serving
    assert b"connection: close" in answer
    assert answer.endswith(b"GET /hold ")


async def test_what_outlasts_the_drain_is_cut() -> None:
    server = Server()
    server.http._drain_s = 0.05
    await server.http.started()
    reader, writer = await server.connect()
    writer.write(GET.replace(b"/echo", b"/hold"))
    await server.seen.get()
    server.http.stop()
    await asyncio.wait_for(server.serving, 60)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_answers_that_nobody_reads_hold_back_the_requests_behind_them(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
    for _ in range(2):
        await asyncio.wait_for(server.seen.get(), 60)
    await asyncio.sleep(0.2)
    assert server.seen.qsize() < 20
    for _ in range(100):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        await asyncio.wait_for(reader.readexactly(1 << 20), 60)
    writer.close()


async def test_what_stands_behind_a_body_is_no_header(server: Server) -> None:
    post = b"POST /trailed HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = await server.ask(post + b"1\r\na\r\n0\r\nx-late: yes\r\n\r\n")
    assert answer.endswith(b"none")


async def test_trailers_without_end_are_cut_off(server: Server) -> None:
    post = b"POST /trailed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    reader, writer = await server.connect()
    writer.write(post + b"a: b\r\n" * 40_000)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_a_body_that_is_none_is_answered_at_once(server: Server) -> None:
    answer = await server.ask(b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", b"zz\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(b"broken")
