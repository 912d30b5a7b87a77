"""A payload or message UCX is working on."""

from collections.abc import Callable
from typing import Any, TypeAlias

from services.engine.transfer.pages import Page

UcxObject: TypeAlias = Any
"""An object of UCXX, which carries no types."""
OnDone: TypeAlias = Callable[[str | None], None]
"""Told None, or UCX's error in words, once UCX has reported the request and its page is HELD again."""


class Flight:
    """One UCX request and the memory it refers to, kept alive and owned until UCX reports it (R1).

    Owned by the `Fabric`, on the transfer thread. UCXX does not hold the memory: dropping it early sends or overwrites
    whatever is allocated there next.
    """

    __slots__ = ("array", "is_send", "on_done", "page", "request")

    def __init__(
        self, request: UcxObject, array: UcxObject, page: Page | None, on_done: OnDone, *, is_send: bool
    ) -> None:
        self.request = request
        self.array = array
        """UCXX's view of the memory, which holds the buffer."""
        self.page = page
        """The page it lies in, or None for control messages and the scratch page."""
        self.on_done = on_done
        """Called once."""
        self.is_send = is_send

    @property
    def is_done(self) -> bool:
        """Whether UCX has reported the request."""
        return bool(self.request.completed)

    def finish(self, failure: str | None) -> None:
        """Hand the page back to its owner, then tell it."""
        if self.page is not None:
            self.page.restore()
        self.on_done(failure)
