"""What this master knows of a worker's load that the worker's last report does not contain.

Heartbeats come each second; between two of them a master would send everything to the worker that looked emptiest. What
it sent counts from the dispatch until the first heartbeat after the worker has said that it has it. What has ended is
taken off until the next heartbeat: outputs take a second or two, so that half of a pool turns over between two reports,
and without it all workers would look full but for one that a large request holds, where nothing ends.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from services.common.ipc import AttemptKey
from services.common.messages import WorkerRef


@dataclass(slots=True)
class _Worker:
    unseen: dict[AttemptKey, int] = field(default_factory=dict)
    seen: dict[AttemptKey, int] = field(default_factory=dict)
    num_tokens: int = 0
    num_freed: int = 0


class Pending(NamedTuple):
    """How a worker's load differs from what it reported last."""

    num_requests: int
    """Attempts under way to it."""
    num_tokens: int
    """Their tokens."""
    num_freed: int
    """Tokens of attempts that have ended there since."""


_NOTHING = Pending(0, 0, 0)


class PendingLoad:
    """worker -> tokens that its load lacks, and that it has too many. Written by `Attempts`, read for the selector's
    snapshot."""

    def __init__(self) -> None:
        self._workers: dict[WorkerRef, _Worker] = {}

    @property
    def num_workers(self) -> int:
        """Workers whose load differs from what they reported."""
        return sum(1 for one in self._workers.values() if one.unseen or one.seen or one.num_freed)

    def of(self, worker: WorkerRef) -> Pending:
        """How this one's load differs from its report."""
        one = self._workers.get(worker)
        return _NOTHING if one is None else Pending(len(one.unseen) + len(one.seen), one.num_tokens, one.num_freed)

    def sent(self, worker: WorkerRef, key: AttemptKey, num_tokens: int) -> None:
        """An attempt is on its way."""
        one = self._workers.setdefault(worker, _Worker())
        one.unseen[key] = num_tokens
        one.num_tokens += num_tokens

    def arrived(self, worker: WorkerRef, key: AttemptKey) -> None:
        """The worker has it: its next heartbeat counts it."""
        one = self._workers.get(worker)
        if one is not None and key in one.unseen:
            one.seen[key] = one.unseen.pop(key)

    def heartbeat(self, worker: WorkerRef) -> None:
        """The worker reported its load."""
        one = self._workers.setdefault(worker, _Worker())
        one.num_tokens -= sum(one.seen.values())
        one.seen.clear()
        one.num_freed = 0

    def ended(self, worker: WorkerRef, key: AttemptKey, num_tokens: int) -> None:
        """The attempt is over, with so many tokens of prompt and output."""
        one = self._workers.get(worker)
        if one is None:
            return
        if key in one.unseen or key in one.seen:
            one.num_tokens -= one.unseen.pop(key, 0) + one.seen.pop(key, 0)
        else:
            one.num_freed += num_tokens

    def lost(self, worker: WorkerRef) -> None:
        """It reports no more; attempts that end there later change nothing."""
        self._workers.pop(worker, None)
