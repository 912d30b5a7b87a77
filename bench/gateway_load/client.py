"""An HTTP client that spends little: raw asyncio streams, so that a load of thousands fits beside the gateway."""

import asyncio
import json
import time
from typing import NamedTuple

CONTENT = "Tell me a story about a fox, a dog and a river that would not stay in its bed. " * 5


class Outcome(NamedTuple):
    """One request as its client saw it."""

    first_byte_s: float
    total_s: float
    is_ok: bool


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def chat(self, num_tokens: int, *, stream: bool) -> Outcome:
        """One chat to its end."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        reader, writer = self._streams
        started = time.perf_counter()
        writer.write(_request(num_tokens, stream=stream))
        head = await reader.readuntil(b"\r\n\r\n")
        first = time.perf_counter()
        is_ok = head.startswith(b"HTTP/1.1 200")
        if b"chunked" in head:
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                tail = tail[-4:] + await reader.read(1 << 16)
            is_ok = is_ok and b"[DONE]" in tail
        else:
            await reader.readexactly(_length(head))
        return Outcome(first - started, time.perf_counter() - started, is_ok)

    def close(self) -> None:
        """End it."""
        if self._streams is not None:
            self._streams[1].close()


def _request(num_tokens: int, *, stream: bool) -> bytes:
    messages = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": CONTENT}]
    fields = {"model": "bench", "messages": messages, "stream": stream, "max_tokens": num_tokens, "temperature": 0.7}
    body = json.dumps(fields).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def _length(head: bytes) -> int:
    (line,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(line.partition(b":")[2])
