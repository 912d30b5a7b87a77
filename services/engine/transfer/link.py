"""One UCX endpoint and everything in flight on it. Transfer thread only.

UCX carries the payloads, or the receiver reads them out of the sender's pages (`shared_pages`), as the handshake says.
"""

import logging
import time

import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from services.engine.transfer.endpoint_query import endpoint_transports
from services.engine.transfer.flight import Flight, OnDone, UcxObject
from services.engine.transfer.lanes import Lane, fastest_lane
from services.engine.transfer.page_memory import Buffer, Mapping
from services.engine.transfer.pages import Page
from services.engine.transfer.shared_pages import Loans, Reads

log = logging.getLogger(__name__)

_UNREPORTED_S = 2.0
"""A send, of a page or of other bytes, ends so long after its endpoint's close although UCX has not reported it. Seen
over shared memory with a killed peer, about once in ten: UCX never reports one of the sends. The close has finished, so
nothing sends from the memory any more; a peer that still reads from a page was never told SENT and throws the bytes
away. A link whose flights never end would stay for ever, and its fabric would never be idle."""


class Link:
    """Owns an endpoint and its flights: open -> closed (endpoint closed by force) -> drained (no flight left).

    Between closed and drained the pages of its flights are QUARANTINED (R1). Made by `Fabric`.
    """

    def __init__(self, endpoint: UcxObject) -> None:
        self._endpoint = endpoint
        self._flights: list[Flight] = []
        self._loans: Loans | None = None
        self._reads: Reads | None = None
        self.is_closed = False
        self._closed_at = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether UCX still believes in the peer."""
        return not self.is_closed and bool(self._endpoint.alive)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in flight."""
        return not self._flights and not self.is_reading

    @property
    def is_reading(self) -> bool:
        """Whether reads are under way: their end wakes nobody."""
        return self._reads is not None and not self._reads.is_empty

    @property
    def is_lending(self) -> bool:
        """Whether the peer reads payloads out of this side's pages."""
        return self._loans is not None

    @property
    def reads_pages(self) -> bool:
        """Whether this side reads payloads out of the peer's pages."""
        return self._reads is not None

    def lend_pages(self) -> None:
        """The peer has mapped the pages here: what is sent from now on is lent to it until it was `taken`."""
        self._loans = Loans()

    def read_pages(self, mapping: Mapping) -> None:
        """The peer's pages are mapped here, for as long as the link needs them."""
        self._reads = Reads(mapping)

    def taken(self, tag: int) -> bool:
        """The peer has read a payload; whether it was lent one of that tag."""
        return self._loans is not None and self._loans.taken(tag)

    def has_page(self, start: int, num_bytes: int) -> bool:
        """Whether a payload that the peer says begins at `start` of its block can be had."""
        return self._reads is None or self._reads.has(start, num_bytes)

    def read_page(self, page: Page, start: int, num_bytes: int, on_done: OnDone) -> None:
        """Start reading what the peer `has_page` into `page`, which is lent meanwhile."""
        assert self._reads is not None
        self._reads.start(page, start, num_bytes, on_done)

    def send(self, buffer: Buffer, tag: int, on_done: OnDone) -> None:
        """Start sending `buffer`, which is nobody's page."""
        if self._loans is not None:
            self._loans.lend(None, tag, on_done)
            return
        array = Array(buffer)
        self._start(self._endpoint.tag_send(array, ucx.UCXXTag(tag)), array, on_done, is_send=True)

    def receive(self, buffer: Buffer, tag: int, on_done: OnDone) -> None:
        """Start receiving into `buffer`, which is nobody's page; a longer message ends in an error."""
        array = Array(buffer)
        self._start(self._endpoint.tag_recv(array, ucx.UCXXTag(tag)), array, on_done)

    def send_page(self, page: Page, num_bytes: int, tag: int, on_done: OnDone) -> None:
        """Start sending the first bytes of `page`, which is lent until UCX, or the peer that reads it, is done."""
        if self._loans is not None:
            self._loans.lend(page, tag, on_done)
            return
        array = page.view(num_bytes, Array)
        page.lend()
        self._start(self._endpoint.tag_send(array, ucx.UCXXTag(tag)), array, on_done, page, is_send=True)

    def receive_page(self, page: Page, num_bytes: int, tag: int, on_done: OnDone) -> None:
        """Start receiving into the first bytes of `page`, which is lent until UCX is done."""
        array = page.view(num_bytes, Array)
        page.lend()
        self._start(self._endpoint.tag_recv(array, ucx.UCXXTag(tag)), array, on_done, page)

    def say(self, frame: bytes, tag: int) -> None:
        """Send a control frame, which nobody waits for: mostly UCX has copied it when this returns."""
        array = Array(frame)
        request = self._endpoint.tag_send(array, ucx.UCXXTag(tag))
        if not request.completed:
            self._start(request, array, _ignore, is_send=True)

    def greet(self, out: bytes | None, into: Buffer | None, on_done: OnDone) -> None:
        """Send or receive handshake bytes on the endpoint's own stream, which needs no tags agreed before."""
        array = Array(out if out is not None else into)
        start = self._endpoint.stream_send if out is not None else self._endpoint.stream_recv
        self._start(start(array), array, on_done, is_send=out is not None)

    def collect(self) -> bool:
        """Finish the flights UCX has reported and the reads that are done; whether there were any."""
        has_read = self._reads is not None and self._reads.collect()
        done = [flight for flight in self._flights if flight.is_done]
        if self.is_closed:
            done += [flight for flight in self._flights if self._goes_unreported(flight)]
        if not done:
            return has_read
        self._flights = [flight for flight in self._flights if flight not in done]
        for flight in done:
            flight.finish(_failure(flight.request) if flight.is_done else "UCX did not report the send")
        return True

    def _goes_unreported(self, flight: Flight) -> bool:
        is_late = time.monotonic() - self._closed_at > _UNREPORTED_S
        return is_late and flight.is_send and not flight.is_done

    def lane(self, *, on_device: bool) -> Lane:
        """What carries payloads between pages, which are on a device or on the host."""
        if self.is_lending or self.reads_pages:
            return Lane.CUDA_IPC if on_device else Lane.SHARED_MEMORY
        return fastest_lane(endpoint_transports(self._endpoint.handle), device_pages=on_device)

    def close(self) -> None:
        """Close the endpoint by force: the only way to end a transfer early. Its flights and reads are reported by
        `collect`, what was lent at once."""
        if self.is_closed:
            return
        self.is_closed = True
        for flight in self._flights:
            if flight.page is not None:
                flight.page.quarantine()
        self._endpoint.close_blocking()
        self._closed_at = time.monotonic()
        if self._loans is not None:
            self._loans.end()
        if self._reads is not None:
            self._reads.end()

    def _start(
        self, request: UcxObject, array: UcxObject, on_done: OnDone, page: Page | None = None, *, is_send: bool = False
    ) -> None:
        self._flights.append(Flight(request, array, page, on_done, is_send=is_send))


def _ignore(failure: str | None) -> None:
    if failure is not None:
        log.debug("a control frame was not sent: %s", failure)


def _failure(request: UcxObject) -> str | None:
    try:
        request.check_error()
    except ucx.UCXError as error:
        return str(error)
    return None
