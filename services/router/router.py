"""The scheduler of a worker: the one object through which its control process lets work into the engine.

It decides; the engine alone owns slots (R19). Work goes

    enqueue --> waiting --> proposed --> in the engine --> gone
                  |  ^          |              |
       given up <-'  '-Deferred-'              '-Preempted: queued again by the caller as RESUMED

and the Router's picture of the pool is what the engine last told plus the proposals it has not answered. Nothing here
waits for the engine: `run` sleeps until something happens that could change the plan, plans, proposes, and sleeps
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from services.common.errors import OverloadedError, SluiceError
from services.router import events
from services.router.outlook import Outlook
from services.router.output_length import OutputLengths
from services.router.peak_memory import Joiners
from services.router.running import RunningSet, Stage
from services.router.scheduler import Plan, Planner, PoolView, hopeless, plan, refusal, retry_after_s
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig

_RETRY_S = 0.1
"""How long a deferred proposal rests when the engine says nothing in the meantime."""
_HEARTBEAT_S = 1.0
"""The longest sleep while something waits."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """What a Router does to the world. Called at the end of `decide`, in the order decided; must not block."""

    propose: Callable[[QueuedWork], None]
    """Ask the engine to take it; the answer is told as Admitted or Deferred."""
    give_up: Callable[[QueuedWork, SluiceError], None]
    """It leaves the queue without having been let in: its queue budget ran out, or cannot be met."""
    reserve_first: Callable[[QueuedWork], None]
    """Ask a decode worker for room before this prompt is let in; the answer is told as Granted. Once for each."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker tells of itself, for selection, shedding and autoscaling."""

    num_waiting: int
    num_running: int
    """Sequences let in."""
    waiting_tokens: int
    """Prompt tokens to be computed of what waits and of what is in."""
    held_slots: int
    admitted_peak_ratio: float
    """Predicted peak of what is in over the pool; at most 1."""
    demand_ratio: float
    """The same with all that waits; without bound."""
    predicted_wait_s: float
    """How long one that came now would wait."""
    quantile: float
    """The level that output lengths are predicted at now."""


class Router:
    """Lives in a worker's control process, on its event loop; every method but `run` returns at once."""

    def __init__(
        self,
        config: RouterConfig,
        outlets: Outlets,
        clock: Callable[[], float] = time.monotonic,
        lengths: OutputLengths | None = None,
        planner: Planner = plan,
    ) -> None:
        """lengths, planner: other ways to predict and to plan, for comparisons; the life table where left out."""
        self._config = config
        self._outlets = outlets
        self._clock = clock
        self._plan = planner
        self._queue = WaitingQueue(config)
        self._outlook = Outlook(config, OutputLengths(config.lengths) if lengths is None else lengths)
        self._running = RunningSet(config, self._outlook.lengths)
        self._foreign_slots = 0
        """Held in the engine for nobody the Router knows: prefixes whose first user has left."""
        self._wait_s = 0.0
        """What one that comes behind the queue would wait, as of the last plan; nothing once nobody waits."""
        self._resting = False
        """The engine deferred a proposal and has told nothing since."""
        self._outbox: list[Callable[[], None]] = []
        """What `decide` has decided; carried out when it has finished, so that it may be answered at once."""
        self._wake = asyncio.Event()

    def enqueue(self, work: QueuedWork) -> None:
        """Queue work.

        Raises ContextLengthError for what would not fit an idle worker, OverloadedError (with Retry-After) when the
        queue is full or the predicted wait exceeds the queue budget, KeyError for a key that is known.
        """
        if self._running.get(work.key) is not None:
            raise KeyError(f"{work.key!r} is let in already")
        error = refusal(work, self._config, len(self._queue), self._wait_s, self._clock())
        if error is not None:
            raise error
        self._queue.push(work, self._running.next_place(), self._outlook.group(work))
        self._wake.set()

    def cancel(self, key: Hashable) -> bool:
        """Take work out of the queue.

        True: it waited, and the engine does not know it. False: it does not wait; what is in the engine is ended there,
        and told here as Gone.
        """
        was_waiting = self._queue.pop(key) is not None
        self._note_empty(self._clock())
        self._wake.set()
        return was_waiting

    def tell(self, event: events.EngineEvent) -> None:
        """Something happened in the engine; tell in the engine's order. Unknown keys are ignored: their work has
        ended."""
        self._resting = isinstance(event, events.Deferred)
        self._apply(event)
        if len(self._queue):
            self._wake.set()

    def decide(self) -> None:
        """Plan now and act on it. `run` calls this; simulations and tests call it themselves."""
        if not len(self._queue):
            return
        now_s = self._clock()
        self._outlook.predict(self._running)
        self._expire(now_s)
        if not self._resting:
            joiners = self._outlook.joiners(self._queue, self._running)
            self._act(self._plan(self._queue, joiners, self._pool(), self._config, now_s), joiners, now_s)
        self._shed(now_s)
        outbox, self._outbox = self._outbox, []
        for act in outbox:
            act()

    async def run(self) -> None:
        """Plan whenever something has changed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._sleep_s()):
                    await self._wake.wait()
            except TimeoutError:
                self._resting = False
            self._wake.clear()
            self.decide()

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self._running.check_integrity()
        both = [entry.work.key for entry in self._queue if self._running.get(entry.work.key) is not None]
        assert not both, f"waiting and let in at once: {both}"

    @property
    def num_waiting(self) -> int:
        """Work in the queue."""
        return len(self._queue)

    @property
    def predicted_wait_s(self) -> float:
        """What one that comes now would wait, as of the last plan: what refusals go by. O(1)."""
        return self._wait_s

    @property
    def load(self) -> Load:
        """How the worker stands. O(n), vectorised: for a frame, not for a token."""
        self._outlook.predict(self._running)
        curve, capacity = self._running.ledger.curve(), self._config.capacity_slots
        demand = curve.peak_with(self._outlook.joiners(self._queue, self._running)) + self._foreign_slots
        return Load(
            num_waiting=len(self._queue),
            num_running=self._running.num_sequences,
            waiting_tokens=self._running.computing_tokens + int(self._queue.arrays().compute_tokens.sum()),
            held_slots=self._running.ledger.held + self._foreign_slots,
            admitted_peak_ratio=min((curve.peak + self._foreign_slots) / capacity, 1.0),
            demand_ratio=demand / capacity,
            predicted_wait_s=float(self._outlook.waits_s(self._queue, self._running, self._capacity)[-1]),
            quantile=self._outlook.level,
        )

    # ---------------------------------------------------------------------------------------------------- what is told

    def _apply(self, event: events.EngineEvent) -> None:
        match event:
            case events.Stepped():
                self._stepped(event)
            case events.Finished():
                self._finished(event)
            case events.Admitted(key, held_slots, cached_tokens):
                self._admitted(key, held_slots, cached_tokens)
            case events.Started(key):
                self._running.started(key)
            case events.Granted(key):
                self._granted(key)
            case events.Deferred(key):
                self._deferred(key)
            case events.Preempted(key, choice):
                self._outlook.preempted()
                self._running.ended(key, choice)
            case events.Gone(key):
                self._gone(key)
            case events.Idle(held_slots):
                self._see_held(held_slots)

    def _admitted(self, key: Hashable, held_slots: int, cached_tokens: int) -> None:
        one = self._running.get(key)
        if one is not None and one.stage is Stage.PROPOSED:
            self._outlook.rates.let_in(one.waited_slots)
        if one is not None and one.compute_left:
            self._outlook.rates.admitted(one.entry.work.context_tokens, cached_tokens)
        self._running.admitted(key, held_slots, cached_tokens)

    def _stepped(self, event: events.Stepped) -> None:
        if event.num_decode_rows:
            self._running.ledger.advance()
        for key, tokens_left in event.computed:
            self._running.computed(key, tokens_left)
        self._outlook.rates.stepped(event.step_s, event.num_prefill_tokens, event.num_decode_rows)
        self._see_held(event.held_slots)

    def _see_held(self, held_slots: int) -> None:
        known = self._running.ledger.held - self._running.proposed_slots
        self._foreign_slots = max(held_slots - known, 0)

    def _finished(self, event: events.Finished) -> None:
        one = self._running.ended(event.key, event.choice)
        if one is not None:
            now = self._running.ledger.now
            self._outlook.ended(one, event.num_output_tokens, now, natural=event.natural)

    def _gone(self, key: Hashable) -> None:
        one = self._running.get(key)
        if one is not None:
            self._outlook.aborted(self._running, one)
            self._running.gone(key)

    def _granted(self, key: Hashable) -> None:
        self._queue.grant(key)
        self._running.granted(key)

    def _deferred(self, key: Hashable) -> None:
        one = self._running.gone(key)
        if one is not None:
            self._queue.push_back(one.entry)

    # ------------------------------------------------------------------------------------------------ what is decided

    @property
    def _capacity(self) -> int:
        return self._config.capacity_slots - self._foreign_slots

    def _pool(self) -> PoolView:
        running = self._running
        return PoolView(
            curve=running.ledger.curve(),
            capacity_slots=self._capacity,
            num_running=running.num_sequences,
            step_tokens_left=running.step_tokens_left,
            ungranted_slots=running.ungranted_slots,
            resuming=running.num_resuming > 0,
        )

    def _act(self, decided: Plan, joiners: Joiners, now_s: float) -> None:
        for index, count in decided.bypassed.items():
            entry = self._queue[index]
            entry.bypassed += count
            entry.blocked_since_s = now_s if entry.blocked_since_s is None else entry.blocked_since_s
        reserve_first = [self._queue[index].work for index in decided.reserve_first if self._queue.ask(index)]
        self._propose(decided.admit, joiners)
        self._outlook.rates.planned(now_s, more_waits=len(self._queue) > 0)
        self._note_empty(now_s)
        self._outbox.extend(partial(self._outlets.reserve_first, work) for work in reserve_first)

    def _propose(self, admit: list[int], joiners: Joiners) -> None:
        left, peaks = joiners.left[admit].tolist(), joiners.own_peaks[admit].tolist()
        had_to_wait = self._outlook.rates.anything_waits
        for entry, tokens, peak in zip(self._queue.take(admit), left, peaks, strict=True):
            self._running.propose(entry, tokens, peak if had_to_wait else 0)
            self._outbox.append(partial(self._outlets.propose, entry.work))

    def _note_empty(self, now_s: float) -> None:
        """Once nobody waits, time tells of no rate, and what the last plan foretold has ended with its queue."""
        if not len(self._queue):
            self._outlook.rates.planned(now_s, more_waits=False)
            self._wait_s = 0.0

    def _expire(self, now_s: float) -> None:
        """Give up what has waited out its queue budget."""
        deadline_s = self._queue.arrays().deadline_s
        if deadline_s.min() <= now_s:
            for index in (deadline_s <= now_s).nonzero()[0][::-1]:
                self._give_up(self._queue[int(index)].work, "the queue budget ran out", self._wait_s, now_s)

    def _shed(self, now_s: float) -> None:
        """Give up, early, what cannot meet its queue budget; and note what one that comes now would wait."""
        if not len(self._queue):
            return
        waits_s = self._outlook.waits_s(self._queue, self._running, self._capacity)
        self._wait_s = float(waits_s[-1])
        arrays = self._queue.arrays()
        for index in hopeless(waits_s[:-1], arrays.deadline_s, now_s, self._config.shed_confidence)[::-1]:
            work, wait_s = self._queue[index].work, float(waits_s[index])
            why = f"predicted wait of {wait_s:.1f} s more exceeds what is left of the queue budget"
            self._give_up(work, why, wait_s, now_s)

    def _give_up(self, work: QueuedWork, why: str, wait_s: float, now_s: float) -> None:
        self._queue.pop(work.key)
        self._note_empty(now_s)
        error = OverloadedError(why, retry_after_s=retry_after_s(wait_s))
        self._outbox.append(partial(self._outlets.give_up, work, error))

    def _sleep_s(self) -> float | None:
        if not len(self._queue):
            return None
        until_deadline_s = float(self._queue.arrays().deadline_s.min()) - self._clock()
        return min(max(until_deadline_s, 0.0), _RETRY_S if self._resting else _HEARTBEAT_S)
