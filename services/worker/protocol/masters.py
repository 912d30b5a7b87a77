"""What a worker owes to its masters: sessions, resume, reconcile, silence (R5, R7, R8).

A master is   present --its stream breaks--> silent --`silence_s` later--> forgotten, with all its attempts
                 ^---------- hello -----------'
A hello of a later start of a silent master ends the attempts of the start before. While the one before drains both are
present: a gateway's processes outlive a parent that is killed, and those of the next one have the same names. An
attempt that has ended here stays known, with its output, until its master aborts or no longer names it: what was sent
may have been lost with a session.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from services.common.ipc import AttemptKey
from services.common.messages import (
    AttemptEvent,
    Failed,
    FailureCause,
    LiveAttempt,
    MasterRef,
    Prefilling,
    Queued,
)
from services.worker.protocol.attempt import Attempt
from services.worker.protocol.effects import Effect, Follow, Forget, Grown, SendToMaster
from services.worker.protocol.times import Times
from services.worker.protocol.tombstones import Tombstones

_MISSES = 2
"""Rounds of reconciling that must leave an attempt out before it is ended (R8)."""

A = TypeVar("A", bound=Attempt)


@dataclass(slots=True)
class _Master:
    ref: MasterRef
    session: int | None
    silent_since: float


class Masters(Generic[A]):
    """The attempts of one worker by request, and the masters they belong to. Used by one core."""

    def __init__(self, emit: Callable[[Effect], None], end: Callable[[A, float], None], times: Times) -> None:
        self.attempts: dict[str, A] = {}
        self.tombstones = Tombstones(times.tombstone_s)
        self._silence_s = times.master_silence_s
        self._emit = emit
        self._end = end
        """The core's: give back what an attempt holds, then call `remove`."""
        self._masters: dict[MasterRef, _Master] = {}
        """In the order in which they first came."""

    # ---------------------------------------------------------------------------------------------------- attempts

    def find(self, key: AttemptKey) -> A | None:
        """The attempt of exactly this name."""
        known = self.attempts.get(key.request_id)
        return known if known is not None and known.key == key else None

    def is_stale(self, key: AttemptKey) -> bool:
        """Whether a new attempt of this name may not start (R5)."""
        known = self.attempts.get(key.request_id)
        return self.tombstones.covers(key) or (known is not None and known.key.attempt >= key.attempt)

    def add(self, attempt: A, now: float) -> None:
        """Take a new attempt; one before it, of the same request, is ended."""
        before = self.attempts.get(attempt.key.request_id)
        if before is not None:
            self._end(before, now)
        self.attempts[attempt.key.request_id] = attempt

    def remove(self, attempt: A, now: float) -> None:
        """Forget an attempt that holds nothing any more."""
        if self.attempts.get(attempt.key.request_id) is attempt:
            del self.attempts[attempt.key.request_id]
        self.tombstones.bury(attempt.key, now)
        self._emit(Forget(attempt.master, attempt.key, attempt.choices))

    def rename(self, attempt: A, key: AttemptKey, now: float) -> None:
        """The attempt goes on under a later number; nobody follows the old one any more."""
        self._emit(Forget(attempt.master, attempt.key, attempt.choices))
        self.tombstones.bury(attempt.key, now)
        attempt.key = key
        attempt.published.clear()
        attempt.said = {
            kind: msgspec.structs.replace(event, key=key)
            for kind, event in attempt.said.items()
            if kind in {Queued, Prefilling}
        }

    def tell(self, attempt: A, event: AttemptEvent) -> None:
        """Say an event, now and again on every new session."""
        attempt.said[type(event)] = event
        self._emit(SendToMaster(attempt.master, event))

    def publish(self, attempt: A, choice: int) -> None:
        """From now on the master gets this choice's output."""
        attempt.published.add(choice)
        self._emit(Follow(attempt.master, attempt.key, choice, attempt.logs[choice], len(attempt.output_ids)))

    def grown(self, attempt: A, choice: int) -> None:
        """There is new output."""
        if choice in attempt.published:
            self._emit(Grown(attempt.master, attempt.key, choice))

    # ---------------------------------------------------------------------------------------------------- sessions

    def is_present(self, ref: MasterRef) -> bool:
        """Whether there is a live session to exactly this start of a master (R5)."""
        master = self._masters.get(ref)
        return master is not None and master.session is not None

    def knows(self, ref: MasterRef) -> bool:
        """Whether this start of a master is present, or silent for not too long."""
        return ref in self._masters

    def hello(self, ref: MasterRef, session: int, live: list[LiveAttempt], now: float) -> None:
        """A session begins. `session` is a number the edge never uses twice."""
        for other in self._earlier_starts(ref):
            if other.session is None:
                self._forget(other, now)
        self._masters[ref] = _Master(ref, session, now)
        named = {one.key: one for one in live}
        for attempt in list(self._of(ref)):
            if attempt.key not in named:
                self._end(attempt, now)
        for key, one in named.items():
            self._resume(ref, key, one)

    def closed(self, ref: MasterRef, session: int, now: float) -> None:
        """A session ended; nothing happens when another has taken its place."""
        master = self._masters.get(ref)
        if master is not None and master.session == session:
            master.session, master.silent_since = None, now

    def reconcile(self, ref: MasterRef, live: list[LiveAttempt], now: float) -> None:
        """What the master believes in: what it left out twice in a row ends."""
        named = {one.key for one in live}
        for attempt in list(self._of(ref)):
            attempt.missed = 0 if attempt.key in named else attempt.missed + 1
            if attempt.missed >= _MISSES:
                self._end(attempt, now)

    def abort(self, keys: list[AttemptKey], now: float) -> None:
        """End attempts; those that are not known must not start later."""
        for key in keys:
            known = self.attempts.get(key.request_id)
            if known is not None and known.key.attempt <= key.attempt:
                self._end(known, now)
            if known is None or known.key.attempt <= key.attempt:
                self.tombstones.bury(key, now)

    def held(self, ref: MasterRef) -> list[AttemptKey]:
        """For the heartbeat: every attempt of this master, ended but not forgotten ones included."""
        return [attempt.key for attempt in self._of(ref)]

    def tick(self, now: float) -> None:
        """Forget silent masters and old tombstones. Called on the sweeper's timer."""
        self.tombstones.expire(now)
        for master in list(self._masters.values()):
            if master.session is None and now - master.silent_since >= self._silence_s:
                self._forget(master, now)

    def _of(self, ref: MasterRef) -> Iterator[A]:
        return (attempt for attempt in self.attempts.values() if attempt.master == ref)

    def _earlier_starts(self, ref: MasterRef) -> list[_Master]:
        """Of the same master, those that came before this one first did."""
        earlier = itertools.takewhile(lambda one: one.ref != ref, self._masters.values())
        return [one for one in earlier if one.ref.master_id == ref.master_id]

    def _forget(self, master: _Master, now: float) -> None:
        del self._masters[master.ref]
        for attempt in list(self._of(master.ref)):
            self._end(attempt, now)

    def _resume(self, ref: MasterRef, key: AttemptKey, live: LiveAttempt) -> None:
        attempt = self.find(key)
        if attempt is None:
            self._emit(SendToMaster(ref, Failed(key, FailureCause.UNKNOWN_ATTEMPT, "not known here")))
            return
        attempt.missed = 0
        for event in attempt.said.values():
            self._emit(SendToMaster(ref, event))
        for choice, next_index in live.next_index.items():
            if choice in attempt.published:
                self._emit(Follow(ref, key, choice, attempt.logs[choice], next_index))
