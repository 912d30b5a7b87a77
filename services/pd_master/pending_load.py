"""This master's own dispatches that a worker's reported load does not contain yet.

Heartbeats come each second; between two of them a master would send everything to the worker that looked emptiest. What
it sent counts from the dispatch until the first heartbeat after the worker has said that it has it.
"""

from dataclasses import dataclass, field

from services.common.ipc import AttemptKey
from services.common.messages import WorkerRef


@dataclass(slots=True)
class _Worker:
    unseen: dict[AttemptKey, int] = field(default_factory=dict)
    seen: dict[AttemptKey, int] = field(default_factory=dict)
    num_tokens: int = 0


class PendingLoad:
    """worker -> tokens of attempts under way to it. Written by `Attempts`, read for the selector's snapshot."""

    def __init__(self) -> None:
        self._workers: dict[WorkerRef, _Worker] = {}

    @property
    def num_workers(self) -> int:
        """Workers with anything under way."""
        return len(self._workers)

    def num_requests(self, worker: WorkerRef) -> int:
        """Attempts under way."""
        one = self._workers.get(worker)
        return 0 if one is None else len(one.unseen) + len(one.seen)

    def num_tokens(self, worker: WorkerRef) -> int:
        """Their tokens."""
        one = self._workers.get(worker)
        return 0 if one is None else one.num_tokens

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
        one = self._workers.get(worker)
        if one is not None:
            one.num_tokens -= sum(one.seen.values())
            one.seen.clear()
            if not one.unseen:
                del self._workers[worker]

    def dropped(self, worker: WorkerRef, key: AttemptKey) -> None:
        """The attempt is over."""
        one = self._workers.get(worker)
        if one is not None:
            one.num_tokens -= one.unseen.pop(key, 0) + one.seen.pop(key, 0)
            if not one.unseen and not one.seen:
                del self._workers[worker]
