"""Payloads that the receiver reads out of the sender's pages by itself, without UCX: one end of a link each.

    sender     page lent ── the peer says TAKEN, or the link is closed ──> page back
    receiver   read under way ── the copy is done ──> TAKEN;  once the link is closed and no read is left: unmapped

A link closed at the sender has its pages back at once, though the peer may still read: it was not told SENT and throws
away what it reads.
"""

from collections import deque

from services.engine.transfer.flight import Flight, OnDone
from services.engine.transfer.page_memory import Mapping, MappingError
from services.engine.transfer.pages import Page


class Loans:
    """Pages that a peer reads, by their payloads' tags. Owned by a sender's `Link`."""

    def __init__(self) -> None:
        self._loans: dict[int, tuple[Page | None, OnDone]] = {}

    def lend(self, page: Page | None, tag: int, on_done: OnDone) -> None:
        """The peer may read it from now on; None stands for memory that is nobody's page."""
        if page is not None:
            page.lend()
        self._loans[tag] = page, on_done

    def taken(self, tag: int) -> bool:
        """The peer is done with a payload; whether it is one that was lent."""
        page, on_done = self._loans.pop(tag, (None, None))
        if on_done is None:
            return False
        if page is not None:
            page.restore()
        on_done(None)
        return True

    def end(self) -> None:
        """Take everything back."""
        loans, self._loans = self._loans, {}
        for page, on_done in loans.values():
            if page is not None:
                page.restore()
            on_done("the connection ended")


class Reads:
    """Reads under way, in the order in which they complete. Owned by a receiver's `Link`, until it is drained."""

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self._flights: deque[Flight] = deque()
        self._is_ending = self._is_unmapped = False

    @property
    def is_empty(self) -> bool:
        """Whether none is under way."""
        return not self._flights

    def has(self, start: int, num_bytes: int) -> bool:
        """Whether so many bytes from `start` on lie in the peer's block."""
        return start + num_bytes <= self._mapping.num_bytes

    def start(self, page: Page, start: int, num_bytes: int, on_done: OnDone) -> None:
        """Read `num_bytes` from `start` of the peer's block on, into `page`, which is lent meanwhile."""
        page.lend()
        read = self._mapping.read(start, num_bytes, page.buffer)
        self._flights.append(Flight(read, None, page, on_done, is_send=False))

    def collect(self) -> bool:
        """Finish those that are done; whether there were any."""
        is_any = False
        while self._flights and self._flights[0].is_done:
            is_any = True
            flight = self._flights.popleft()
            flight.finish(_failure(flight))
        if is_any and self._is_ending:
            self.end()
        return is_any

    def end(self) -> None:
        """The link is closed: reads under way still end by themselves, and with the last the block is let go of."""
        if not self._is_ending:
            self._is_ending = True
            for flight in self._flights:
                assert flight.page is not None
                flight.page.quarantine()
        if not self._flights and not self._is_unmapped:
            self._is_unmapped = True
            self._mapping.close()


def _failure(flight: Flight) -> str | None:
    try:
        flight.request.check_error()
    except MappingError as error:
        return str(error)
    return None
