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

    work: Future[Compiled]
    started_at: float | None = None
    """When a thread took it up."""
    error: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `compiled` can be had."""
        return self.error is None and self.work.done() and self.work.exception() is None

    @property
    def compiled(self) -> Compiled:
        """Only when ready."""
        return self.work.result(timeout=0)

    def problem(self, now: float) -> str | None:
        """Why it will never be ready, once that is known."""
        if self.error is None:
            if self.work.done():
                error = self.work.exception()
                self.error = None if error is None else str(error)
            elif self.started_at is not None and now - self.started_at > LIMIT_S:
                self.error = f"takes longer than {LIMIT_S:.0f} s to compile"
        return self.error
