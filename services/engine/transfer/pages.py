"""Transfer pages: the only memory UCX touches (R2).

A page is in one of four states, and only these moves exist:

    FREE --acquire--> HELD --lend--> MOVING --restore--> HELD --release--> FREE
                                       |
                                  quarantine (its endpoint is being closed)
                                       v
                                  QUARANTINED --restore (UCX has reported every request)--> HELD

HELD: its one owner, the loop (gathering or scattering) or the transfer thread, may release it. MOVING: a UCX request
refers to it. QUARANTINED: its endpoint is closing and UCX has not yet reported the request: nobody may touch it (R1).
Invariant: every page is in exactly one state, and the free list holds exactly the FREE ones, each once.

The scratch page lies beside the pool: payloads nobody wants are received into it, several at once if need be.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from services.engine.transfer.page_memory import Buffer, PageMemory

V = TypeVar("V")

_MAX_VIEWS = 8


class PageState(Enum):
    """Where a page is; see the module's life cycle."""

    FREE = "free"
    HELD = "held"
    MOVING = "moving"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages by state; they sum to the pool."""

    free: int
    held: int
    moving: int
    quarantined: int


class Page:
    """One fixed buffer. Made by `PagePool`; released by whoever holds it, once."""

    __slots__ = ("_pool", "_views", "buffer", "index", "state")

    def __init__(self, pool: "PagePool", index: int, buffer: Buffer) -> None:
        self._pool = pool
        self.index = index
        self.buffer = buffer
        """1-D uint8, `page_bytes` long: numpy on the host, torch on a device."""
        self.state = PageState.FREE
        self._views: dict[int, Any] = {}

    def view(self, num_bytes: int, make: Callable[[Buffer], V]) -> V:
        """What `make` makes of the first `num_bytes`, made once: to look at a device tensor costs UCXX tens of us.

        Always the same `make`, on the transfer thread. Pages are mostly full, so few sizes are kept.
        """
        view: V | None = self._views.get(num_bytes)
        if view is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            view = self._views[num_bytes] = make(self.buffer[:num_bytes])
        return view

    def release(self) -> None:
        """Give the page back. Raises RuntimeError unless it is HELD: then someone else still owns it."""
        self._pool.take_back(self)

    def lend(self) -> None:
        """HELD -> MOVING: a UCX request is about to refer to it."""
        self._move(PageState.HELD, PageState.MOVING)

    def quarantine(self) -> None:
        """MOVING -> QUARANTINED: its endpoint is being closed."""
        self._move(PageState.MOVING, PageState.QUARANTINED)

    def restore(self) -> None:
        """MOVING or QUARANTINED -> HELD: UCX has reported its request, nothing refers to it any more."""
        self._move(self.state if self.state is PageState.QUARANTINED else PageState.MOVING, PageState.HELD)

    def _move(self, before: PageState, after: PageState) -> None:
        if self.state is not before:
            raise RuntimeError(f"page {self.index} is {self.state.value}, not {before.value}")
        self.state = after


class PagePool:
    """A fixed set of pages in one allocation, shared by the loop and the transfer thread of one engine.

    One allocation, so that mapping or registering it once (at the handshake) covers every page.
    """

    def __init__(self, memory: PageMemory, num_pages: int, page_bytes: int) -> None:
        """Allocate `num_pages` pages and the scratch page, `page_bytes` each. Raises ValueError on sizes below 1."""
        if num_pages < 1 or page_bytes < 1:
            raise ValueError(f"num_pages and page_bytes must be at least 1, got {num_pages} and {page_bytes}")
        self.memory = memory
        self.page_bytes = page_bytes
        block = memory.allocate((num_pages + 1) * page_bytes)
        self.share = memory.share(block)
        """What a peer may map all pages by, the scratch page being the last; see `PageMemory.share`."""
        buffers = [block[start : start + page_bytes] for start in range(0, (num_pages + 1) * page_bytes, page_bytes)]
        self.scratch: Buffer = buffers.pop()
        self._pages = [Page(self, index, buffer) for index, buffer in enumerate(buffers)]
        self._free = list(reversed(self._pages))
        self._lock = threading.Lock()
        self._on_release: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._pages)

    def acquire(self) -> Page | None:
        """A FREE page, now HELD by the caller; None when there is none. Never waits."""
        with self._lock:
            if not self._free:
                return None
            page = self._free.pop()
            page.state = PageState.HELD
            return page

    def take_back(self, page: Page) -> None:
        """HELD -> FREE; what `Page.release` calls."""
        with self._lock:
            if page.state is not PageState.HELD:
                raise RuntimeError(f"page {page.index} is {page.state.value}, so it cannot be released")
            page.state = PageState.FREE
            self._free.append(page)
        if self._on_release is not None:
            self._on_release()

    def notify(self, on_release: Callable[[], None] | None) -> None:
        """Call `on_release` after every release, on the releasing thread; None ends it."""
        self._on_release = on_release

    def counts(self) -> PageCounts:
        """Pages by state at this moment."""
        states = [page.state for page in self._pages]
        return PageCounts(*(states.count(state) for state in PageState))

    def check_integrity(self) -> list[str]:
        """What is wrong with the pool, in words; empty when its invariant holds."""
        with self._lock:
            free = {page.index for page in self._free}
            problems = [] if len(free) == len(self._free) else ["a page is twice in the free list"]
            problems += [
                f"page {page.index} is {page.state.value} but {'' if page.index in free else 'not '}in the free list"
                for page in self._pages
                if (page.state is PageState.FREE) != (page.index in free)
            ]
        return problems
