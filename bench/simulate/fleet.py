"""Prefill and decode workers under a selector, and the way of a request through them.

    arrival -> chosen pair -> P's queue -> computing ----------------> computed --\
                                  '-> D's queue -> granted -----------------------+-> first token -> KV across -> joined
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from bench.simulate.backfill import Backfill
from bench.simulate.cost import Costs
from bench.simulate.decode import DecodeWorker, Key
from bench.simulate.prefill import PrefillWorker
from bench.simulate.rules import lengths_of
from bench.simulate.story import Story
from bench.simulate.timeline import Timeline
from bench.simulate.trace import Arrival
from services.common.errors import SluiceError
from services.engine.config import PUSH_TAIL_TOKENS
from services.pd_master.selector import MISSING_WEIGHT
from services.router.scheduler import plan
from services.router.work import QueuedWork, RouterConfig, WorkKind

_HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Setup:
    """One simulation, but for its arrivals."""

    costs: Costs
    num_prefill: int = 1
    num_decode: int = 1
    rule: str = "ours"
    selector: str = "ours"
    max_new_tokens: int = 2048
    """What every client asks for."""
    missing_weight: float = MISSING_WEIGHT
    """Of our selector."""
    num_masters: int = 1
    """Of our selector: each knows of its own requests only, and takes turns."""
    queue_budget_s: float = 60.0
    """A request that no decode worker has granted by then is turned away."""
    sheds: bool = True
    """Decode workers turn away what they predict to miss that budget. Comparisons of admission rules leave it out: it
    changes who is served, and a rule that overestimates lengths would turn away what it could serve."""
    backfills: bool = False
    """Decode workers plan by `bench.simulate.backfill`."""
    reserve_ahead_s: float = math.inf
    """A decode worker is asked for room so long before the prompt is computed; from the start of its computing on where
    that is later."""
    decode: RouterConfig = field(default_factory=lambda: RouterConfig(800_000))
    prefill: RouterConfig = field(default_factory=lambda: RouterConfig(800_000))


class Selector(Protocol):
    """Picks the pair of a request."""

    def choose(self, story: Story) -> tuple[PrefillWorker, DecodeWorker]:
        """Raises SluiceError where nobody can take it."""

    def heartbeat(self) -> None:
        """The workers report their loads."""

    def arrived(self, worker: PrefillWorker | DecodeWorker, story: Story) -> None:
        """The worker has the request."""

    def over(self, story: Story) -> None:
        """The request has left."""

    def cache_changed(self, worker: PrefillWorker, stored: list[int], evicted: list[int]) -> None:
        """A prefix cache holds other blocks now."""


class Fleet:
    """Runs arrivals through the workers; read `stories`, `gaps` and the workers afterwards."""

    def __init__(self, setup: Setup, make_selector: Callable[[Fleet], Selector]) -> None:
        self.setup = setup
        self.time = Timeline()
        self.stories: list[Story] = []
        self.gaps: list[tuple[float, int]] = []
        """(seconds since the token before, how many tokens)."""
        costs, time = setup.costs, self.time
        self.prefill = [
            PrefillWorker(f"p{n}", time, costs, setup.prefill, self, self._decode_busy_s)
            for n in range(setup.num_prefill)
        ]
        self.decode = [
            DecodeWorker(
                f"d{n}",
                time,
                costs,
                setup.decode,
                self,
                lengths_of(setup.rule, setup.decode.lengths),
                Backfill() if setup.backfills else plan,
            )
            for n in range(setup.num_decode)
        ]
        self._selector = make_selector(self)
        self._pairs: dict[int, tuple[PrefillWorker, DecodeWorker]] = {}
        self._keys: dict[int, Key] = {}
        self._reserving: set[int] = set()
        self._attempts = itertools.count()
        self._to_come = 0

    def run(self, arrivals: list[Arrival]) -> None:
        """All of them, until the last has left."""
        self._to_come = len(arrivals)
        for number, arrival in enumerate(arrivals):
            limit = max(self.setup.max_new_tokens, arrival.output_tokens)
            story = Story(number, arrival, limit)
            self.stories.append(story)
            self.time.at(arrival.at_s, partial(self._arrive, story))
        self.time.at(0.0, self._heartbeat)
        self.time.run()

    def _decode_busy_s(self) -> float:
        return sum(decode.busy_s for decode in self.decode)

    def _heartbeat(self) -> None:
        for prefill in self.prefill:
            prefill.heartbeat()
        for decode in self.decode:
            decode.heartbeat()
        self._selector.heartbeat()
        if self._to_come or self._pairs:
            self.time.after(_HEARTBEAT_S, self._heartbeat)

    def _arrive(self, story: Story) -> None:
        self._to_come -= 1
        try:
            prefill, decode = self._selector.choose(story)
            self._pairs[story.number] = prefill, decode
            story.predicted_prefill_s = prefill.router.predicted_wait_s
            prefill.submit(story, self._work(story, story.number, WorkKind.PREFILL))
        except SluiceError as error:
            self.turned_away(story, str(error))
            return
        self._selector.arrived(prefill, story)
        self.time.at(story.arrival.at_s + self.setup.queue_budget_s, partial(self._expire, story))

    def _expire(self, story: Story) -> None:
        if story.number in self._pairs and story.granted_s is None:
            self.turned_away(story, "the queue budget ran out")

    def _work(self, story: Story, key: object, kind: WorkKind) -> QueuedWork:
        arrival, limit = story.arrival, story.max_new_tokens
        deadline_s = arrival.at_s + self.setup.queue_budget_s
        work = QueuedWork(
            key=key,
            kind=kind,
            arrival_s=arrival.at_s,
            prompt_tokens=arrival.prompt_tokens,
            max_new_tokens=limit,
            queue_deadline_s=deadline_s if self.setup.sheds or kind is WorkKind.PREFILL else math.inf,
        )
        if self.setup.rule == "oracle":
            true = story.output_tokens
            return replace(work, max_new_tokens=true, min_new_tokens=true)
        return work

    def _reserve(self, story: Story) -> None:
        if story.number in self._reserving or story.granted_s is not None or story.number not in self._pairs:
            return
        decode, key = self._pairs[story.number][1], (story.number, next(self._attempts))
        self._keys[story.number] = key
        self._reserving.add(story.number)
        story.reserved_s, story.predicted_grant_s = self.time.now_s, decode.router.predicted_wait_s
        try:
            decode.reserve(key, story, self._work(story, key, WorkKind.RESERVATION))
        except SluiceError as error:
            self.turned_away(story, str(error))

    # ------------------------------------------------------------------------------------- what prefill workers tell

    def admitted(self, story: Story) -> None:
        """Reserve beside the computing, which costs no time."""
        early_s = self.setup.costs.chunk_s(story.arrival.prompt_tokens, 0) - self.setup.reserve_ahead_s
        if early_s > 0:
            self.time.after(early_s, partial(self._reserve, story))
        else:
            self._reserve(story)

    def reserve_first(self, story: Story) -> None:
        """Reserve before the computing."""
        self._reserve(story)

    def computed(self, story: Story) -> None:
        """The KV is complete; it goes once there is a grant."""
        story.computed_s = self.time.now_s
        if story.granted_s is not None:
            self._hand_over(story)

    def cache_changed(self, worker: PrefillWorker, stored: list[int], evicted: list[int]) -> None:
        """Tell the selector."""
        self._selector.cache_changed(worker, stored, evicted)

    # -------------------------------------------------------------------------------------- what decode workers tell

    def granted(self, key: Key, story: Story) -> None:
        """Room is there."""
        if self._keys.get(story.number) != key:
            return
        self._reserving.discard(story.number)
        story.granted_s = self.time.now_s
        prefill, decode = self._pairs[story.number]
        self._selector.arrived(decode, story)
        prefill.granted(story)
        if story.computed_s is not None:
            self._hand_over(story)

    def revoked(self, story: Story) -> None:
        """Ask again."""
        story.granted_s = None
        self._reserve(story)

    def finished(self, story: Story) -> None:
        """It is through."""
        story.finished_s = self.time.now_s
        self._leave(story)

    def gap(self, seconds: float, times: int) -> None:
        """Keep it for the percentiles."""
        self.gaps.append((seconds, times))

    def turned_away(self, story: Story, why: str) -> None:
        """It leaves without an answer."""
        story.refused = why
        pair = self._pairs.get(story.number)
        if pair is not None:
            pair[0].release(story)
            if story.number in self._keys:
                pair[1].cancel(self._keys[story.number])
        self._leave(story)

    def _leave(self, story: Story) -> None:
        self._pairs.pop(story.number, None)
        self._keys.pop(story.number, None)
        self._reserving.discard(story.number)
        self._selector.over(story)

    def _hand_over(self, story: Story) -> None:
        assert story.granted_s is not None
        assert story.computed_s is not None
        story.first_token_s = self.time.now_s
        costs, prompt = self.setup.costs, story.arrival.prompt_tokens
        sent_meanwhile_s = max(story.computed_s - story.granted_s, 0.0)
        left_s = max(costs.transfer_s(prompt) - sent_meanwhile_s, costs.transfer_s(min(prompt, PUSH_TAIL_TOKENS)))
        self.time.after(left_s, partial(self._join, story))

    def _join(self, story: Story) -> None:
        prefill, decode = self._pairs[story.number]
        decode.join(self._keys[story.number])
        prefill.release(story)
