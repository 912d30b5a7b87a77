"""One UCX endpoint and everything in flight on it. Transfer thread only."""

import time

import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from services.engine.transfer.endpoint_query import endpoint_transports
from services.engine.transfer.flight import Flight, OnDone, UcxObject
from services.engine.transfer.page_memory import Buffer
from services.engine.transfer.pages import Page

_UNREPORTED_S = 2.0
"""A page that was being sent comes back so long after its endpoint's close although UCX has not reported the send. Seen
over shared memory with a killed peer, about once in ten: UCX never reports one of the sends. The close has finished, so
nothing sends from the page any more; a peer that still reads from it was never told SENT and throws the bytes away."""


class Link:
    """Owns an endpoint and its flights: open -> closed (endpoint closed by force) -> drained (no flight left).

    Between closed and drained the pages of its flights are QUARANTINED (R1). Made by `Fabric`.
    """

    def __init__(self, endpoint: UcxObject) -> None:
        self._endpoint = endpoint
        self._flights: list[Flight] = []
        self.is_closed = False
        self._closed_at = 0.0

    @property
    def is_alive(self) -> bool:
        """Whether UCX still believes in the peer."""
        return not self.is_closed and bool(self._endpoint.alive)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is in flight."""
        return not self._flights

    def send(self, buffer: Buffer, tag: int, on_done: OnDone, page: Page | None = None) -> None:
        """Start sending `buffer` (the whole of it); `page`, if given, is lent until UCX is done."""
        array = Array(buffer)
        self._start(self._endpoint.tag_send(array, ucx.UCXXTag(tag)), array, on_done, page, is_send=True)

    def receive(self, buffer: Buffer, tag: int, on_done: OnDone, page: Page | None = None) -> None:
        """Start receiving into `buffer`; a longer message ends in an error."""
        array = Array(buffer)
        self._start(self._endpoint.tag_recv(array, ucx.UCXXTag(tag)), array, on_done, page)

    def greet(self, out: bytes | None, into: Buffer | None, on_done: OnDone) -> None:
        """Send or receive handshake bytes on the endpoint's own stream, which needs no tags agreed before."""
        array = Array(out if out is not None else into)
        start = self._endpoint.stream_send if out is not None else self._endpoint.stream_recv
        self._start(start(array), array, on_done, None)

    def collect(self) -> bool:
        """Finish the flights UCX has reported; whether there were any."""
        done = [flight for flight in self._flights if flight.is_done or self._goes_unreported(flight)]
        if not done:
            return False
        self._flights = [flight for flight in self._flights if flight not in done]
        for flight in done:
            flight.finish(_failure(flight.request) if flight.is_done else "UCX did not report the send")
        return True

    def _goes_unreported(self, flight: Flight) -> bool:
        return (
            self.is_closed
            and flight.is_send
            and flight.page is not None
            and time.monotonic() - self._closed_at > _UNREPORTED_S
        )

    def transports(self) -> list[str]:
        """UCX's names of the transports in use."""
        return endpoint_transports(self._endpoint.handle)

    def close(self) -> None:
        """Close the endpoint by force: the only way to end a transfer early. Its flights are reported by `collect`."""
        if self.is_closed:
            return
        self.is_closed = True
        for flight in self._flights:
            if flight.page is not None:
                flight.page.quarantine()
        self._endpoint.close_blocking()
        self._closed_at = time.monotonic()

    def _start(
        self, request: UcxObject, array: UcxObject, on_done: OnDone, page: Page | None, *, is_send: bool = False
    ) -> None:
        if page is not None:
            page.lend()
        self._flights.append(Flight(request, array, page, on_done, is_send=is_send))


def _failure(request: UcxObject) -> str | None:
    try:
        request.check_error()
    except ucx.UCXError as error:
        return str(error)
    return None
