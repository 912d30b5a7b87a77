"""What clients do to their connections."""

import asyncio
import contextlib
import json
import socket

from tests.unit.api.conftest import Api

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


def raw_request(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(content), content)


async def connect(api: Api) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(api.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


async def test_client_that_reads_nothing_is_ended_after_the_stall_time(api: Api) -> None:
    word = api.text.encode("Hello world " * 20)
    api.dispatcher.script.output = [word * 100]
    api.dispatcher.script.step = 1
    api.dispatcher.script.endless = True
    port = int(api.url.rpartition(":")[2])
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(client, raw_request("/v1/chat/completions", CHAT))
        generation = await api.dispatcher.submitted.get()
        await asyncio.wait_for(generation.closed.wait(), 30)


async def test_half_a_body_holds_nothing(api: Api) -> None:
    _, writer = await connect(api)
    writer.write(raw_request("/v1/chat/completions", CHAT)[:-10])
    await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    assert (await api.http.get("/health")).status_code == 200
    assert api.dispatcher.requests == []


async def test_connection_is_kept_for_the_next_request(api: Api) -> None:
    reader, writer = await connect(api)
    for _ in range(3):
        writer.write(raw_request("/v1/chat/completions", CHAT))
        await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    assert len(api.dispatcher.requests) == 3


async def test_many_streams_at_once_keep_their_own_text(api: Api) -> None:
    api.dispatcher.script.output = [api.text.encode("Hello world")]

    async def one() -> str:
        stream = await api.openai.chat.completions.create(**CHAT)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert set(await asyncio.gather(*(one() for _ in range(64)))) == {"Hello world"}
    assert api.gateway.num_active == 0
