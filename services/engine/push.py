"""One push, as the loop of a prefill engine keeps account of it; `pushes` moves it on."""

from dataclasses import dataclass

from services.common import ipc
from services.engine.jobs import Job
from services.engine.transfer.layout import PageLayout


@dataclass(slots=True, eq=False)
class Stream:
    """What one rank of the peer gets. `next_token` is the first one whose KV has not been gathered."""

    remote: str
    first_head: int
    layout: PageLayout
    next_token: int


@dataclass(slots=True, eq=False)
class Push:
    """One Place."""

    job: Job
    peer_id: str
    key: ipc.AttemptKey
    streams: tuple[Stream, ...]
    began: float
    num_pages: int = 0
    """With the sender and not yet reported."""
    num_bytes: int = 0
    told: bool = False
    """Over as far as this rank knows; all ranks will hear."""
    num_ranks_done: int = 0
    total_bytes: int = 0
    """Of the ranks that are done."""
    over: bool = False
    """Done, failed or replaced, on every rank: what is still reported of it is only counted."""

    @property
    def is_gathered(self) -> bool:
        """Whether all that this rank has to send has been gathered."""
        return all(stream.next_token >= len(self.job.tokens) for stream in self.streams)
