"""A stream's events on their way to one socket: in order whoever writes them, and whatever the socket takes."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from services.common.errors import SluiceError
from services.common.request import Delta, Finish, FinishReason
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, RequestHead
from services.pd_master.backend import Listener
from services.pd_master.generation import ClientGeneration


class Socket:
    """A client's connection; while it is full writers should wait, but what they write is not lost."""

    def __init__(self) -> None:
        self.is_full = False
        self.sent: list[bytes] = []
        self.num_waiting = 0
        self._room = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    async def drained(self) -> None:
        self.num_waiting += 1
        await self._room.wait()

    def close(self) -> None:
        """It takes no more."""
        self.is_full = True
        self._room.clear()

    def open(self) -> None:
        """It does again."""
        self.is_full = False
        self._room.set()

    def call(self) -> HttpCall:
        return HttpCall(RequestHead("POST", "/", [], is_http10=True), self)

    @property
    def events(self) -> bytes:
        """What follows the head."""
        return b"".join(self.sent).partition(b"\r\n\r\n")[2]


class Digits:
    """Shows token ids; a negative one breaks it."""

    def start(self) -> bytes:
        return b"<"

    def delta(self, delta: Delta) -> bytes:
        if min(delta.token_ids) < 0:
            raise ZeroDivisionError
        return b"".join(b"%d" % number for number in delta.token_ids)

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

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        for at, number in enumerate(self._ids):
            finish = Finish(FinishReason.STOP, at + 1) if at + 1 == len(self._ids) else None
            delta = Delta(0, at, [number], "", finish=finish)
            if self._listener is None or finish is not None or not self._listener(delta):
                self.num_yielded += 1
                yield [delta]


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when it is."""
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - it watches another task
            await asyncio.sleep(0)


async def test_direct_writes_keep_the_order_and_leave_the_task_only_first_and_last() -> None:
    socket, source = Socket(), Source(1, 2, 3, 4)
    await stream_events(socket.call(), source, Digits(), source.listen)
    assert socket.events == b"<1234>"
    assert source.num_yielded == 2


async def test_full_socket_hands_the_rest_back_to_the_task_which_waits() -> None:
    socket, source = Socket(), Source(1, 2, 3, 4, 5)

    def listen(listener: Listener) -> None:
        def closing(delta: Delta) -> bool:
            if delta.token_ids == [2]:
                socket.close()
            return listener(delta)

        source.listen(closing)

    task = asyncio.create_task(stream_events(socket.call(), source, Digits(), listen))
    await until(lambda: source.num_yielded == 2)
    await asyncio.sleep(0)
    assert socket.events == b"<1"
    socket.open()
    await task
    assert socket.events == b"<12345>"


async def test_encoder_that_breaks_ends_its_own_stream_alone() -> None:
    socket, source = Socket(), Source(1, -1, 3)
    with pytest.raises(ZeroDivisionError):
        await stream_events(socket.call(), source, Digits(), source.listen)


async def test_what_came_while_the_socket_was_full_is_sent_when_it_opens_though_nothing_else_comes() -> None:
    socket, generation = Socket(), ClientGeneration(lambda: None, 10_000, 30.0)
    task = asyncio.create_task(stream_events(socket.call(), generation, Digits(), generation.listen))

    async def until_sent(all_of_it: bytes) -> None:
        await until(lambda: socket.events == all_of_it)
        for _ in range(5):  # and the task is back where it waits for more
            await asyncio.sleep(0)

    generation.push(Delta(0, 0, [1], ""))
    await until_sent(b"<1")
    socket.close()
    generation.push(Delta(0, 1, [2], ""))
    await until_sent(b"<1")
    socket.open()
    await until_sent(b"<12")
    generation.push(Delta(0, 2, [3], ""))
    assert socket.events == b"<123", "written directly again"
    generation.push(Delta(0, 3, [4], "", finish=Finish(FinishReason.STOP, 4)))
    generation.end(None)
    await task
    assert socket.events == b"<1234>"


async def test_output_that_comes_as_the_socket_opens_stays_behind_what_waited_for_it() -> None:
    socket, generation = Socket(), ClientGeneration(lambda: None, 10_000, 30.0)
    task = asyncio.create_task(stream_events(socket.call(), generation, Digits(), generation.listen))
    generation.push(Delta(0, 0, [1], ""))
    await until(lambda: socket.events == b"<1")
    socket.close()
    generation.push(Delta(0, 1, [2], ""))
    await until(lambda: socket.num_waiting == 1)
    socket.open()
    generation.push(Delta(0, 2, [3], ""))
    generation.push(Delta(0, 3, [4], "", finish=Finish(FinishReason.STOP, 4)))
    generation.end(None)
    await task
    assert socket.events == b"<1234>"
