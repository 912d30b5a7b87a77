"""When a worker counts as lost (R12).

    up --silent for half of the timeout--> quiet --its stream breaks, or silent for four fifths--> down ----> lost
    ^ '------------------ its stream breaks ------------------------------------------------------^ |
    '---------------------------------- hello of the same start ------------------------------------'

    down to lost: refused for REFUSED_S; else out of reach for half of the timeout, but no longer than until the
    whole timeout has passed since it was heard of last.

Two missed beats make a worker quiet: others get the new work, and nothing of it ends. A busy machine does that much to
a healthy process, so its session, with all it carries, ends only after four. A process that is gone costs none of that
time: its connection breaks.

An engine that stands still is no loss: its worker says so itself, and what it holds may go on elsewhere (`stalled`).

A refused connection is the word of its host that nobody listens there any more. Out of reach may as well be this
master's own network: if more than half the workers are, all at once, or this process itself did not run, nobody is
declared lost yet. Quiet ones count for that too: in an outage of the master the sessions end one after the other, up to
a beat apart, and the first would be declared lost before the last has ended. A few seconds later holding back has no
point any more: by then the workers have ended this master's attempts themselves (R7).

Pure: the caller passes the time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from services.common.messages import WorkerRef

WORKER_TIMEOUT_S = 5.0
"""Default: a worker that has not been heard of for so long is lost."""
REFUSED_S = 0.5
_HOLD_EXTRA_S = 3.0
"""Beyond the timeout workers have ended this master's attempts, after the silence that they bear (R7)."""
LAG_S = 1.0
"""Between two ticks: this process stood still, and what it did not hear in that time says nothing."""


@dataclass(slots=True)
class _Worker:
    down_since: float | None = None
    patience_s: float = 0.0
    """From then on until it is lost."""
    is_quiet: bool = False
    """It has a session, and has said nothing on it for long."""
    is_refused: bool = False
    is_stalled: bool = False

    @property
    def is_silent(self) -> bool:
        """Not heard of, for a reason that others may share; a refused connection is a reason of its own."""
        return (self.down_since is not None or self.is_quiet) and not self.is_refused

    @property
    def is_in_trouble(self) -> bool:
        """Silent, or heard of and stalled."""
        return self.is_silent or (self.is_stalled and not self.is_refused)


class Lost(NamedTuple):
    """A verdict."""

    worker: WorkerRef
    crashed: bool
    """Its process is gone for certain."""


class Liveness:
    """Used by the roster."""

    def __init__(self, worker_timeout_s: float = WORKER_TIMEOUT_S) -> None:
        self._timeout_s = worker_timeout_s
        self.quiet_s = worker_timeout_s / 2
        """Silence after which others get the new work."""
        self.silence_s = 0.8 * worker_timeout_s
        """Silence after which a session is ended."""
        self._hold_s = worker_timeout_s + _HOLD_EXTRA_S
        self._workers: dict[WorkerRef, _Worker] = {}
        self._ticked_at: float | None = None

    def up(self, worker: WorkerRef) -> None:
        """It said hello."""
        self._workers[worker] = _Worker()

    def down(self, worker: WorkerRef, now: float, silent_s: float = 0.0) -> None:
        """Its stream broke, or was ended, after so long a silence."""
        known = self._workers.get(worker)
        if known is not None and known.down_since is None:
            known.down_since = now
            known.patience_s = min(self._timeout_s / 2, self._timeout_s - silent_s)

    def refused(self, worker: WorkerRef) -> None:
        """Its address refuses connections."""
        known = self._workers.get(worker)
        if known is not None:
            known.is_refused = True

    def stalled(self, worker: WorkerRef, *, is_stalled: bool) -> bool:
        """It said whether its engine stands still. Return whether that is a reason to move what it holds: not while
        most workers are in trouble, for the few others would drown in it."""
        known = self._workers.get(worker)
        if known is None:
            return False
        known.is_stalled = is_stalled
        return is_stalled and not self._is_most(one.is_in_trouble for one in self._workers.values())

    def _is_most(self, workers: Iterable[bool]) -> bool:
        return 2 * sum(workers) > len(self._workers) > 1

    def forget(self, worker: WorkerRef) -> None:
        """It is known to be gone by other means."""
        self._workers.pop(worker, None)

    def tick(self, now: float, quiet: Collection[WorkerRef] = ()) -> list[Lost]:
        """Return whom to give up. quiet: who has a session and has said nothing for `quiet_s`. Called several times a
        second. A stalled worker is heard of: this master's network is not what ails it, and it delays no verdict over
        those that are silent."""
        self._discount_lag(now)
        for worker, known in self._workers.items():
            known.is_quiet = worker in quiet
        hold = self._is_most(one.is_silent for one in self._workers.values())
        lost = [
            Lost(worker, one.is_refused)
            for worker, one in self._workers.items()
            if one.down_since is not None and now - one.down_since >= self._patience_s(one, hold=hold)
        ]
        for one in lost:
            del self._workers[one.worker]
        return lost

    def _discount_lag(self, now: float) -> None:
        lag_s = 0.0 if self._ticked_at is None else now - self._ticked_at
        self._ticked_at = now
        if lag_s > LAG_S:
            for one in self._workers.values():
                if one.down_since is not None:
                    one.down_since += lag_s

    def _patience_s(self, worker: _Worker, *, hold: bool) -> float:
        if worker.is_refused:
            return REFUSED_S
        return self._hold_s if hold else worker.patience_s
