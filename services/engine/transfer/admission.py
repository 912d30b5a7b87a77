"""Where an announced payload is received: a page, or the scratch page when nobody wants it (R3).

An attempt is expected (its slots are allocated), gone (it left a tombstone), or never heard of. The last may be early:
another rank can hear of its reservation later than a fast sender. It waits for a moment, then counts as gone.
Expected payloads wait for a page in order of arrival; pages come back as the loop scatters.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.common.ipc import AttemptKey
from services.engine.transfer.pages import Page, PagePool


@dataclass(slots=True, eq=False)
class Inbound:
    """One announced payload."""

    channel: "Receiving"
    seq: int
    key: AttemptKey
    token_start: int
    num_tokens: int
    num_bytes: int
    checksum: int | None
    is_proof: bool
    source: int = 0
    """Where it begins in the sender's block of pages; of use where that is mapped."""
    page: Page | None = None
    """None before it is placed, and for ever when it goes to the scratch page."""
    early_until: float = 0.0
    """When an attempt never heard of counts as gone."""
    due: float | None = None
    """When the sender must have delivered; set when the receive is posted."""
    is_received: bool = False
    is_sent: bool = False


class Receiving(Protocol):
    """What admission needs of a channel."""

    @property
    def is_over(self) -> bool:
        """Whether its payloads can no longer come."""
        ...

    def post(self, inbound: Inbound, page: Page | None) -> None:
        """Receive into `page`, HELD, or into the scratch page."""
        ...


class Admission:
    """Shared by all channels of a receiver. Transfer thread, but for `is_waiting`."""

    def __init__(self, pool: PagePool, early_grace_s: float, tombstone_s: float, now: Callable[[], float]) -> None:
        self._pool = pool
        self._early_grace_s = early_grace_s
        self._tombstone_s = tombstone_s
        self._now = now
        self._expected: set[AttemptKey] = set()
        self._tombstones: OrderedDict[AttemptKey, float] = OrderedDict()
        self._waiting: deque[Inbound] = deque()
        self._early: list[Inbound] = []

    @property
    def is_waiting(self) -> bool:
        """Whether a payload waits for a page; any thread."""
        return bool(self._waiting)

    def wants(self, inbound: Inbound) -> bool:
        """Whether somebody still waits for these bytes."""
        return inbound.is_proof or inbound.key in self._expected

    def place(self, inbound: Inbound) -> None:
        """Receive it now, or when there is a page or its attempt is expected."""
        if self.wants(inbound):
            self._waiting.append(inbound)
            self.serve()
        elif inbound.key in self._tombstones or self._early_grace_s <= 0:
            inbound.channel.post(inbound, None)
        else:
            inbound.early_until = self._now() + self._early_grace_s
            self._early.append(inbound)

    def serve(self) -> None:
        """Give free pages to those who wait."""
        while self._waiting:
            inbound = self._waiting[0]
            if inbound.channel.is_over:
                self._waiting.popleft()
                continue
            page = None
            if self.wants(inbound) and (page := self._pool.acquire()) is None:
                return
            self._waiting.popleft()
            inbound.channel.post(inbound, page)

    def expect(self, key: AttemptKey) -> None:
        """The attempt's slots are there."""
        self._expected.add(key)
        self._tombstones.pop(key, None)
        self._replace_early(lambda inbound: inbound.key == key)

    def forget(self, key: AttemptKey) -> None:
        """The attempt is gone: what still comes is received into the scratch page and answered."""
        self._expected.discard(key)
        self._tombstones[key] = self._now() + self._tombstone_s
        self._tombstones.move_to_end(key)
        self._replace_early(lambda inbound: inbound.key == key)
        self.serve()

    def tick(self, now: float) -> None:
        """Give up on early payloads and drop old tombstones."""
        late = [inbound for inbound in self._early if now > inbound.early_until or inbound.channel.is_over]
        self._early = [inbound for inbound in self._early if inbound not in late]
        for inbound in late:
            if not inbound.channel.is_over:
                inbound.channel.post(inbound, None)
        while self._tombstones and now > next(iter(self._tombstones.values())):
            self._tombstones.popitem(last=False)
        self.serve()

    def _replace_early(self, is_meant: Callable[[Inbound], bool]) -> None:
        meant = [inbound for inbound in self._early if is_meant(inbound)]
        self._early = [inbound for inbound in self._early if not is_meant(inbound)]
        for inbound in meant:
            self.place(inbound)
