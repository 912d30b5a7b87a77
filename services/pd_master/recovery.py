"""Starting attempts, and starting them again: the one recovery operation (R11, R12).

A request that has lost its place and finds no other waits, trying again each `RETRY_S`, for at most `PATIENCE_S`; then
it fails. Refused for load before anything was delivered, it fails at once: the client should come back later, not wait
here.
"""

import hashlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias

from services.common.errors import NoWorkerError, OverloadedError, SluiceError, WorkerFailedError
from services.common.messages import Abort, Redirect, WorkerRef
from services.common.request import Request
from services.pd_master.attempt_index import AttemptIndex
from services.pd_master.effects import Effect, End, Send
from services.pd_master.inflight import Branch, Chooser, Inflight, MasterAttempt, Pair, Stage
from services.pd_master.timers import Timers

RETRY_S = 0.25
PATIENCE_S = 5.0
MAX_CRASHES = 2
"""A request that was in two engines when they crashed or stood still is not tried on a third (R12)."""
MAX_ATTEMPTS = 32
"""Default bound of one branch's attempts and redirects, whatever they ended from: beyond it something is wrong that
another one does not mend."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """A branch without a place should look for one again."""

    branch: Branch


@dataclass(frozen=True, slots=True)
class RedirectDue:
    """An attempt whose prompt is computed should look for a decode worker again."""

    attempt: MasterAttempt


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """A request may not take longer. By id: it is over long before, most times, and should not be kept in memory."""

    request_id: str


@dataclass(frozen=True, slots=True)
class BudgetDue:
    """A request may not wait longer for its prefill, or its prompt for a decode worker."""

    request_id: str


Due: TypeAlias = RetryDue | RedirectDue | DeadlineDue | BudgetDue


class Recovery:
    """Part of `Attempts`: the only place where attempts begin and end."""

    def __init__(
        self,
        chooser: Chooser,
        index: AttemptIndex,
        timers: Timers[Due],
        emit: Callable[[Effect], None],
        max_attempts: int,
    ) -> None:
        self._chooser = chooser
        self._index = index
        self._timers = timers
        self._emit = emit
        self._max_attempts = max_attempts

    # ---------------------------------------------------------------------------------------------------------- begin

    def choose(self, branch: Branch) -> Pair:
        """Raises what the chooser raises."""
        return self._chooser.pair(branch.inflight.request, frozenset(branch.excluded))

    def start(self, branch: Branch, pair: Pair, now: float) -> None:
        """Send an attempt on its way."""
        branch.in_trouble_since = None
        attempt = MasterAttempt(branch.next_key(), branch, pair)
        branch.current = attempt
        self._index.add(attempt)
        self._emit(Send(pair.prefill, branch.submit(attempt, now)))

    def overlap(self, branch: Branch, pair: Pair, now: float) -> None:
        """Start the next attempt while the current one goes on (R17)."""
        branch.previous = branch.current
        self.start(branch, pair, now)

    def place_for(self, branch: Branch) -> Pair | None:
        """Where an attempt could start now."""
        try:
            return self.choose(branch)
        except SluiceError:
            return None

    def is_anyone_there(self, request: Request) -> bool:
        """Whether any worker, full or not, takes requests of this one's model now."""
        try:
            self._chooser.pair(request, frozenset())
        except NoWorkerError:
            return False
        except SluiceError:
            return True
        return True

    def retry(self, branch: Branch, now: float, place: Pair | None = None) -> None:
        """Another attempt for a branch that has none. `place`: where, if that has been chosen already."""
        if branch.inflight.is_over or branch.current is not None:
            return
        if self._is_worn_out(branch):
            return
        try:
            pair = place or self.choose(branch)
        except SluiceError as error:
            branch.excluded.clear()
            if self._has_patience(branch, now):
                self._timers.add(now + RETRY_S, RetryDue(branch))
            elif branch.inflight.num_delivered:
                self.fail(branch.inflight, WorkerFailedError(f"workers were lost, none took over: {error.message}"))
            else:
                self.fail(branch.inflight, error)
            return
        self.start(branch, pair, now)

    def _is_worn_out(self, branch: Branch) -> bool:
        if branch.num_attempts < self._max_attempts:
            return False
        self.fail(branch.inflight, WorkerFailedError(f"{self._max_attempts} attempts failed"))
        return True

    def _has_patience(self, branch: Branch, now: float) -> bool:
        if branch.in_trouble_since is None:
            branch.in_trouble_since = now
        return now - branch.in_trouble_since < PATIENCE_S

    # ----------------------------------------------------------------------------------------------------------- loss

    def lost(
        self,
        attempt: MasterAttempt,
        now: float,
        *,
        exclude: WorkerRef | None = None,
        crash: Hashable = None,
        shed: SluiceError | None = None,
        place: Pair | None = None,
    ) -> None:
        """An attempt is over before its time. `crash` names the crash that took it; `shed` is what the client hears
        when a worker refused for load, nothing was delivered and no other takes it; `place`: where the next one may
        start, if that has been chosen already."""
        branch = attempt.branch
        inflight = branch.inflight
        self.drop(attempt)
        if exclude is not None:
            branch.excluded.add(exclude)
        if crash is not None:
            inflight.crashes.add(str(crash))
        if attempt is branch.previous:
            branch.previous = None
        elif branch.previous is not None:
            branch.current, branch.previous = branch.previous, None
        elif inflight.num_engines_down >= MAX_CRASHES:
            problem = f"{MAX_CRASHES} engines crashed or stood still while they held this request"
            self.fail(inflight, WorkerFailedError(problem))
        else:
            branch.current = None
            self._replace(branch, now, shed, place)

    def _replace(self, branch: Branch, now: float, shed: SluiceError | None, place: Pair | None) -> None:
        if shed is None:
            first, *others = _split(branch)
            self.retry(first, now, place)
            for one in others:
                self.retry(one, now)
            return
        try:
            pair = self.choose(branch)
        except SluiceError:
            self._shed(branch, shed, RetryDue(branch), now)
            return
        self.start(branch, pair, now)

    def _shed(self, branch: Branch, error: SluiceError, again: Due, now: float) -> None:
        """All that could take it are full. Who has output already is not turned away for that (R4)."""
        if not branch.inflight.num_delivered:
            self.fail(branch.inflight, error)
            return
        branch.excluded.clear()
        self._timers.add(now + (error.retry_after_s or 1.0), again)

    def redirect(
        self, attempt: MasterAttempt, now: float, exclude: WorkerRef | None = None, shed: SluiceError | None = None
    ) -> None:
        """The prompt's KV stays where it is; another decode worker takes the second half."""
        branch = attempt.branch
        attempt.waits_for_redirect = False
        if exclude is not None:
            branch.excluded.add(exclude)
        try:
            peer = self._chooser.decode(branch.inflight.request, attempt.pair.prefill, frozenset(branch.excluded))
        except SluiceError:
            self._wait_for_decode(attempt, now, shed)
            return
        if self._is_worn_out(branch):
            return
        self._move(attempt, Pair(attempt.pair.prefill, peer))

    def redirect_if_possible(self, attempt: MasterAttempt) -> None:
        """As `redirect`, but it stays where it is when no other decode worker takes it."""
        branch = attempt.branch
        prefill = attempt.pair.prefill
        try:
            peer = self._chooser.decode(branch.inflight.request, prefill, frozenset(branch.excluded))
        except SluiceError:
            return
        if not self._is_worn_out(branch):
            self._move(attempt, Pair(prefill, peer))

    def _move(self, attempt: MasterAttempt, pair: Pair) -> None:
        branch = attempt.branch
        self._index.remove(attempt)
        if attempt.decode is not None:
            self._emit(Send(attempt.decode, Abort([attempt.key])))
        branch.in_trouble_since = None
        moved = MasterAttempt(branch.next_key(), branch, pair, min(attempt.stage, Stage.PREFILLING))
        branch.current = moved
        self._index.add(moved)
        assert pair.decode is not None
        self._emit(Send(pair.prefill, Redirect(attempt.key, moved.key.attempt, pair.decode)))

    def _wait_for_decode(self, attempt: MasterAttempt, now: float, shed: SluiceError | None) -> None:
        branch = attempt.branch
        attempt.waits_for_redirect = True
        if shed is not None:
            self._shed(branch, shed, RedirectDue(attempt), now)
            return
        branch.excluded.clear()
        if self._has_patience(branch, now):
            self._timers.add(now + RETRY_S, RedirectDue(attempt))
        else:
            self.lost(attempt, now)

    # ------------------------------------------------------------------------------------------------------------ end

    def drop(self, attempt: MasterAttempt) -> None:
        """Forget an attempt, here and on its workers."""
        if not self._index.remove(attempt):
            return
        if not attempt.is_prefill_done:
            self._emit(Send(attempt.pair.prefill, Abort([attempt.key])))
        if attempt.decode is not None:
            self._emit(Send(attempt.decode, Abort([attempt.key])))

    def close_branch(self, branch: Branch) -> None:
        """Nothing of it goes on."""
        for attempt in (branch.current, branch.previous):
            if attempt is not None:
                self.drop(attempt)
        branch.current = branch.previous = None

    def close(self, inflight: Inflight) -> None:
        """Nothing of the request goes on; says nothing to the client."""
        inflight.is_over = True
        for branch in inflight.branches:
            self.close_branch(branch)

    def fail(self, inflight: Inflight, error: SluiceError) -> None:
        """The request cannot go on."""
        if not inflight.is_over:
            self.close(inflight)
            self._emit(End(inflight.request.request_id, error))


def _split(branch: Branch) -> list[Branch]:
    """Each unfinished choice goes on alone (R11); together only as long as nothing was delivered of any."""
    if len(branch.choices) == 1 or not branch.num_delivered:
        return [branch]
    inflight = branch.inflight
    alone = [
        Branch(
            inflight,
            _id_alone(inflight.request.request_id, choice.index),
            {choice.index: choice},
            num_attempts=branch.num_attempts,
            excluded=set(branch.excluded),
        )
        for choice in branch.unfinished()
    ]
    done = {choice.index: choice for choice in branch.choices.values() if choice.is_finished}
    branch.choices = done
    inflight.branches.extend(alone)
    return alone


def _id_alone(request_id: str, choice: int) -> str:
    """What a choice is called on its own: an id as any other, which begins as the request's for who reads logs."""
    return request_id[:24] + hashlib.blake2b(f"{request_id}.{choice}".encode(), digest_size=4).hexdigest()


def overloaded(message: str, retry_after_s: float | None) -> OverloadedError:
    """What the client hears when workers refuse for load."""
    return OverloadedError(message or "the workers' queues are full", retry_after_s=retry_after_s or 1.0)
