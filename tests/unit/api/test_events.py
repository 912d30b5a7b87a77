"""A stream's events on their way to one socket: in order whoever writes them, and whatever the socket takes."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any

import pytest

from services.common.errors import SluiceError
from services.common.request import Delta, Finish, FinishReason
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall
from services.pd_master.backend import Listener
from services.pd_master.generation import ClientGeneration


class Socket:
    """An ASGI server's end: `send` waits while `is_open` is not set, and writes then, as uvicorn does."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.sent: list[bytes] = []

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if not self.is_open.is_set():
            await self.is_open.wait()
        self.sent.append(message.get("body", b""))

    async def receive(self) -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    def call(self) -> HttpCall:
        return HttpCall({"method": "POST", "path": "/", "headers": []}, self.receive, self.send)


class Digits:
    """Shows token ids; a negative one breaks it."""

    def start(self) -> bytes:
        return b"<"

    def batch(self, deltas: list[Delta]) -> bytes:
        ids = [number for delta in deltas for number in delta.token_ids]
        if min(ids) < 0:
            raise ZeroDivisionError
        return b"".join(b"%d" % number for number in ids)

    def end(self) -> bytes:
        return b">"

    def error(self, error: SluiceError) -> bytes:  # noqa: ARG002 - the interface
        return b"!"


class Source:
    """Yields what it is given, and offers the rest to the listener first, as a generation does."""

    def __init__(self, *ids: int) -> None:
        self._ids = ids
        self._listener: Listener | None = None
        self.num_yielded = 0

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._listener = listener
        return asyncio.Event().set  # the next output comes at once

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        for at, number in enumerate(self._ids):
            finish = Finish(FinishReason.STOP, at + 1) if at + 1 == len(self._ids) else None
            delta = Delta(0, at, [number], "", finish=finish)
            if self._listener is None or finish is not None or not self._listener(delta):
                self.num_yielded += 1
                yield [delta]


async def test_direct_writes_keep_the_order_and_leave_the_task_only_first_and_last() -> None:
    socket, source = Socket(), Source(1, 2, 3, 4)
    await stream_events(socket.call(), source, Digits(), source.listen)
    assert b"".join(socket.sent) == b"<1234>"
    assert source.num_yielded == 2


async def test_full_socket_hands_the_rest_back_to_the_task_which_waits() -> None:
    socket, source = Socket(), Source(1, 2, 3, 4, 5)

    def listen(listener: Listener) -> Callable[[], None]:
        def closing(delta: Delta) -> bool:
            if delta.token_ids == [2]:
                socket.is_open.clear()
            return listener(delta)

        return source.listen(closing)

    task = asyncio.create_task(stream_events(socket.call(), source, Digits(), listen))
    async with asyncio.timeout(5):
        while source.num_yielded < 2:  # noqa: ASYNC110 - it watches another task
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert b"".join(socket.sent) == b"<1"
    socket.is_open.set()
    await task
    assert b"".join(socket.sent) == b"<12345>"


async def test_encoder_that_breaks_ends_its_own_stream_alone() -> None:
    socket, source = Socket(), Source(1, -1, 3)
    with pytest.raises(ZeroDivisionError):
        await stream_events(socket.call(), source, Digits(), source.listen)


async def test_what_a_full_socket_did_not_take_is_sent_when_it_opens_though_nothing_else_comes() -> None:
    socket, generation = Socket(), ClientGeneration(lambda: None, 10_000, 30.0)
    task = asyncio.create_task(stream_events(socket.call(), generation, Digits(), generation.listen))

    async def until_sent(all_of_it: bytes) -> None:
        async with asyncio.timeout(5):
            while b"".join(socket.sent) != all_of_it:  # noqa: ASYNC110 - it watches another task
                await asyncio.sleep(0)
        for _ in range(5):  # and the task is back where it waits for more
            await asyncio.sleep(0)

    generation.push(Delta(0, 0, [1], ""))
    await until_sent(b"<1")
    socket.is_open.clear()
    generation.push(Delta(0, 1, [2], ""))
    await until_sent(b"<1")
    socket.is_open.set()
    await until_sent(b"<12")
    generation.push(Delta(0, 2, [3], ""))
    assert b"".join(socket.sent) == b"<123", "written directly again"
    generation.push(Delta(0, 3, [4], "", finish=Finish(FinishReason.STOP, 4)))
    generation.end(None)
    await task
    assert b"".join(socket.sent) == b"<1234>"
