"""What this master knows of a worker's load that the worker's last report does not contain.

Heartbeats come each second; between two of them a master would send everything to the worker that looked emptiest. What
it sent counts from the dispatch until the first heartbeat after the worker has said that it has it. What has ended is
taken off until the next heartbeat: outputs take a second or two, so that half of a pool turns over between two reports,
and without it all workers would look full but for one that a large request holds, where nothing ends.

Other masters send and see their requests end as well, unheard: both counts are multiplied by how many sequences the
workers have for each that is this master's, as the heartbeats tell. Without that each of four masters sends all of a
second's requests to the worker that reported least, as the three others do.
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
    num_own: int = 0
    num_all: int = 0
    """Sequences there, this master's and all, as reported last."""


class Pending(NamedTuple):
    """How a worker's load differs from what it reported last."""

    num_requests: int
    """This master's attempts under way to it."""
    num_tokens: int
    """Their tokens, and those that other masters will have sent meanwhile."""
    num_freed: int
    """Tokens of attempts that have ended there since, those of other masters likewise."""


_NOTHING = Pending(0, 0, 0)
_MOST_TIMES = 32.0
"""A master with next to nothing of its own knows next to nothing of what the others do."""


class PendingLoad:
    """worker -> tokens that its load lacks, and that it has too many. Written by `Attempts`, read for the selector's
    snapshot."""

    def __init__(self) -> None:
        self._workers: dict[WorkerRef, _Worker] = {}
        self._num_own = self._num_all = 0
        """Sums over the workers."""
        self.times = 1.0
        """Sequences that the workers have, for each of this master."""

    @property
    def num_workers(self) -> int:
        """Workers whose load differs from what they reported."""
        return sum(1 for one in self._workers.values() if one.unseen or one.seen or one.num_freed)

    def of(self, worker: WorkerRef) -> Pending:
        """How this one's load differs from its report."""
        one, times = self._workers.get(worker), self.times
        if one is None:
            return _NOTHING
        return Pending(len(one.unseen) + len(one.seen), int(one.num_tokens * times), int(one.num_freed * times))

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

    def heartbeat(self, worker: WorkerRef, num_own: int = 0, num_all: int = 0) -> None:
        """The worker reported its load: so many sequences of this master, and so many in all."""
        one = self._workers.setdefault(worker, _Worker())
        self._num_own += num_own - one.num_own
        self._num_all += num_all - one.num_all
        one.num_own, one.num_all = num_own, num_all
        self._count_others()
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
        one = self._workers.pop(worker, None)
        if one is not None:
            self._num_own -= one.num_own
            self._num_all -= one.num_all
            self._count_others()

    def _count_others(self) -> None:
        self.times = min(max(self._num_all / self._num_own, 1.0), _MOST_TIMES) if self._num_own else 1.0
