"""A network in one thread whose every step is chosen from outside: what a `Link` is to the channels, without UCX.

It is as unkind as UCX may be: payloads move in any order, a receiver may pull bytes out of a page after its sender gave
up (a remote read), and each side learns of the other's end on its own time. Control messages of one direction keep
their order, as UCX's tagged messages do. Where pages are shared the bytes of a read are those that are in the sender's
page when a step completes it.
"""

from collections import deque
from dataclasses import dataclass

from services.engine.transfer.flight import Flight, OnDone
from services.engine.transfer.lanes import Lane
from services.engine.transfer.page_memory import Buffer, HostMemory
from services.engine.transfer.pages import Page
from services.engine.transfer.shared_pages import Loans, Reads
from services.engine.transfer.wire import Control, unpack_frame


@dataclass(eq=False)
class Request:
    """What UCX's request is to a Flight."""

    completed: bool = False
    failure: str | None = None

    def complete(self, failure: str | None = None) -> None:
        if not self.completed:
            self.completed, self.failure = True, failure


@dataclass(eq=False)
class SteppedRead(Request):
    """A read of shared pages, under way until a step completes it."""

    source: Buffer = None
    into: Buffer = None

    def step(self) -> None:
        self.into[:] = self.source
        self.complete()

    def check_error(self) -> None:
        assert self.completed


class SteppedMapping:
    """The peer's block, mapped."""

    def __init__(self, block: Buffer) -> None:
        self._block = block
        self.num_bytes = len(block)
        self.reads: deque[SteppedRead] = deque()
        self.is_closed = False

    def read(self, start: int, num_bytes: int, into: Buffer) -> SteppedRead:
        assert not self.is_closed
        self.reads.append(SteppedRead(source=self._block[start : start + num_bytes], into=into[:num_bytes]))
        return self.reads[-1]

    def step(self) -> None:
        """The oldest read is done."""
        self.reads.popleft().step()

    def close(self) -> None:
        assert not self.is_closed
        assert not self.reads
        self.is_closed = True


class SharedMemory(HostMemory):
    """Of one side of a network in one process: the peer maps the block as it is."""

    peer: "SharedMemory"
    block: Buffer

    def allocate(self, num_bytes: int) -> Buffer:
        self.block = super().allocate(num_bytes)
        return self.block

    def share(self, _block: Buffer) -> bytes:
        return b"shared"

    def map(self, _share: bytes) -> SteppedMapping:
        return SteppedMapping(self.peer.block)


@dataclass(eq=False)
class Wanted:
    """A posted receive, or a payload on its way."""

    tag: int
    buffer: Buffer
    request: Request


class FakeLink:
    """One end: `sent` holds payloads on their way to the peer, `control` and `stream` its other bytes to the peer."""

    def __init__(self) -> None:
        self.peer: FakeLink = self
        self.is_closed = False
        self.knows_peer_is_gone = False
        self.sent: list[Wanted] = []
        self.posted: list[Wanted] = []
        self.control: deque[Control] = deque()
        self.stream = b""
        self.moved: list[Wanted] = []
        """Payloads the peer has, which this side has not been told of yet."""
        self.mapping: SteppedMapping | None = None
        """Of the peer's pages, while reads of them may be under way."""
        self.loans: Loans | None = None
        self.reads: Reads | None = None
        self._reading: list[Wanted] = []
        self._flights: list[Flight] = []

    @property
    def is_alive(self) -> bool:
        return not self.is_closed and not self.knows_peer_is_gone

    @property
    def is_drained(self) -> bool:
        return not self._flights and (self.reads is None or self.reads.is_empty)

    @property
    def is_lending(self) -> bool:
        return self.loans is not None

    @property
    def reads_pages(self) -> bool:
        return self.reads is not None

    def lend_pages(self) -> None:
        self.loans = Loans()

    def read_pages(self, mapping: SteppedMapping) -> None:
        self.mapping, self.reads = mapping, Reads(mapping)

    def taken(self, tag: int) -> bool:
        return self.loans is not None and self.loans.taken(tag)

    def has_page(self, start: int, num_bytes: int) -> bool:
        return self.reads is None or self.reads.has(start, num_bytes)

    def read_page(self, page: Page, start: int, num_bytes: int, on_done: OnDone) -> None:
        assert self.reads is not None
        self.reads.start(page, start, num_bytes, on_done)

    def send(self, buffer: Buffer, tag: int, on_done: OnDone, page: Page | None = None) -> None:
        if self.loans is not None:
            self.loans.lend(page, tag, on_done)
            return
        request = Request()
        self.sent.append(Wanted(tag, buffer, request))
        self._start(request, on_done, page)

    def receive(self, buffer: Buffer, tag: int, on_done: OnDone, page: Page | None = None) -> None:
        request = Request()
        self.posted.append(Wanted(tag, buffer, request))
        self._start(request, on_done, page)

    def send_page(self, page: Page, num_bytes: int, tag: int, on_done: OnDone) -> None:
        self.send(page.buffer[:num_bytes], tag, on_done, page)

    def receive_page(self, page: Page, num_bytes: int, tag: int, on_done: OnDone) -> None:
        self.receive(page.buffer[:num_bytes], tag, on_done, page)

    def say(self, frame: bytes, _tag: int) -> None:
        self.control.extend(unpack_frame(frame))

    def greet(self, out: bytes | None, into: Buffer, on_done: OnDone) -> None:
        request = Request()
        if out is not None:
            self.stream += out
            request.complete()
        else:
            self._reading.append(Wanted(0, into, request))
        self._start(request, on_done, None)

    def lane(self, *, on_device: bool) -> Lane:
        return Lane.CUDA_IPC if on_device else Lane.TCP

    def collect(self) -> bool:
        has_read = self.reads is not None and self.reads.collect()
        done = [flight for flight in self._flights if flight.is_done]
        self._flights = [flight for flight in self._flights if not flight.is_done]
        for flight in done:
            flight.finish(flight.request.failure)
        return has_read or bool(done)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        for flight in self._flights:
            if flight.page is not None:
                flight.page.quarantine()
        if self.loans is not None:
            self.loans.end()
        if self.reads is not None:
            self.reads.end()

    def matches(self) -> list[tuple[Wanted, Wanted]]:
        """Payloads of the peer that a posted receive here waits for."""
        return [(sent, posted) for posted in self.posted for sent in self.peer.sent if sent.tag == posted.tag]

    def move(self, sent: Wanted, posted: Wanted) -> None:
        """Copy the bytes that are in the sender's memory *now*; it learns later, by `acknowledge`."""
        posted.buffer[:] = sent.buffer[: len(posted.buffer)]
        posted.request.complete()
        self.posted.remove(posted)
        self.peer.sent.remove(sent)
        self.peer.moved.append(sent)

    def acknowledge(self) -> None:
        """This side learns that its oldest moved payload is there."""
        self.moved.pop(0).request.complete()

    def read_stream(self) -> None:
        """Give arrived handshake bytes to the read that waits for them."""
        while self._reading and len(self.peer.stream) >= len(self._reading[0].buffer):
            wanted = self._reading.pop(0)
            size = len(wanted.buffer)
            wanted.buffer[:] = list(self.peer.stream[:size])
            self.peer.stream = self.peer.stream[size:]
            wanted.request.complete()

    def let_go(self) -> None:
        """UCX has finished closing, or noticed the peer's end: every flight is reported as failed."""
        self.knows_peer_is_gone = True
        for flight in self._flights:
            flight.request.complete("connection reset")

    def read_all(self) -> None:
        """Every read under way is done."""
        while self.mapping is not None and self.mapping.reads:
            self.mapping.step()

    def _start(self, request: Request, on_done: OnDone, page: Page | None) -> None:
        if page is not None:
            page.lend()
        if not self.is_alive:
            request.complete("connection reset")
        self._flights.append(Flight(request, None, page, on_done, is_send=False))
