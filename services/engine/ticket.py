"""A grammar on its way from its source to something that masks tokens."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.common.request import GrammarSpec

if TYPE_CHECKING:
    from xgrammar import GrammarMatcher

LIMIT_S = 10.0
"""Longest compile: real schemas take milliseconds, one that takes longer is made to."""


class GrammarError(Exception):
    """A source that cannot be compiled; the message is for the client."""


class Compiled(Protocol):
    """One grammar for one model. Shared by sequences."""

    num_bytes: int

    def matcher(self) -> "GrammarMatcher":
        """At the start of an output."""
        ...


class Compiler(Protocol):
    """Called in threads."""

    def compile(self, spec: GrammarSpec) -> Compiled:
        """Raise GrammarError saying what is wrong with the source."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """One source on its way; shared by all jobs that want it."""

    number: int
    """The same on every rank."""
    work: Future[Compiled]
    started_at: float | None = None
    """When a thread took it up."""
    num_ranks_ready: int = 0
    is_ready: bool = False
    """Whether `compiled` can be had, on every rank."""
    error: str | None = None
    """Why it will never be ready, on any rank."""

    @property
    def compiled(self) -> Compiled:
        """Only when ready."""
        return self.work.result(timeout=0)

    def problem(self, now: float) -> str | None:
        """Why it will never be ready here, once that is known."""
        if self.work.done():
            error = self.work.exception()
            return None if error is None else str(error)
        if self.started_at is not None and now - self.started_at > LIMIT_S:
            return f"takes longer than {LIMIT_S:.0f} s to compile"
        return None
