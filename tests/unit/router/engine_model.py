"""An engine of slots and tokens without a model: takes proposals, steps token by token, preempts when it runs out.

One decode step is one second of the Router's clock. Slots are counted one by one (extents of `extent`), so what it
occupies is what a real pool would.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from services.common.errors import SluiceError
from services.router import events
from services.router.output_length import LengthConfig
from services.router.router import Outlets, Router
from services.router.work import QueuedWork, RouterConfig, WorkKind

CONFIG = RouterConfig(
    capacity_slots=1000,
    max_running=64,
    chunk_tokens=512,
    step_budget_tokens=512,
    extent_slots=1,
    lengths=LengthConfig(prior_tokens=50),
)


def work(key: object, prompt: int = 20, kind: WorkKind = WorkKind.LOCAL, **more: Any) -> QueuedWork:
    fields = {"arrival_s": 0.0, "prompt_tokens": prompt, "max_new_tokens": 100, **more}
    return QueuedWork(key=key, kind=kind, **fields)


@dataclass
class Row:
    """One sequence, or a prompt that is not decoding yet."""

    work: QueuedWork
    choice: int
    tokens: int
    produced: int
    true_length: int
    compute_left: int


@dataclass
class EngineModel:
    """Runs a Router against itself: `enqueue` on `router`, then `step`."""

    config: RouterConfig
    lengths: dict[Hashable, int] = field(default_factory=dict)
    """Original key -> how many tokens each of its choices produces before EOS."""
    join_after: int = 2
    """Steps until the KV of a reservation has arrived."""

    def __post_init__(self) -> None:
        self.now_s = 0.0
        outlets = Outlets(self._propose, lambda work, error: self.given_up.append((work.key, error)), self._reserve)
        self.router = Router(self.config, outlets, clock=lambda: self.now_s)
        self.given_up: list[tuple[Hashable, SluiceError]] = []
        self.reserved_first: list[Hashable] = []
        self.inbox: list[QueuedWork] = []
        self.standing: dict[Hashable, tuple[QueuedWork, int]] = {}
        """key -> (work, steps until it starts)"""
        self.rows: list[Row] = []
        self.finished: dict[Hashable, int] = {}
        self.admitted_at: dict[Hashable, float] = {}
        self.num_preempted = self.num_deferred = self.worst_held = 0

    # -------------------------------------------------------------------------------------------- what the Router does

    def _propose(self, work: QueuedWork) -> None:
        self.inbox.append(work)

    def _reserve(self, work: QueuedWork) -> None:
        self.reserved_first.append(work.key)

    # ----------------------------------------------------------------------------------------------------------- slots

    def _rounded(self, tokens: int) -> int:
        extent = self.config.extent_slots
        return -(-tokens // extent) * extent

    @property
    def held(self) -> int:
        """Slots occupied, the prompt of several choices once."""
        return sum(self._owned()) + sum(work.context_tokens for work, _ in self.standing.values())

    def _owned(self) -> Iterator[int]:
        prompts = {}
        for row in self.rows:
            if row.work.num_choices == 1:
                yield self._rounded(row.tokens)
            else:
                prompts[row.work.key] = row.work.prompt_tokens
                yield self._rounded(row.tokens - row.work.prompt_tokens)
        yield sum(prompts.values())

    # ----------------------------------------------------------------------------------------------------------- steps

    def step(self) -> None:
        """Answer proposals, start what is ready, decode one token of every row, report."""
        self.router.decide()
        self._answer()
        self._start_ready()
        self._make_room()
        num_rows = len(self.rows)
        for row in list(self.rows):
            self._decode(row)
        self.now_s += 1.0
        self.worst_held = max(self.worst_held, self.held)
        self.router.tell(events.Stepped(1.0, num_rows, 0, self.held))

    def run(self, max_steps: int) -> None:
        """Step until nothing is left, checking invariants; fails when it takes longer than `max_steps`."""
        for _ in range(max_steps):
            if not (self.rows or self.standing or self.inbox or self.router.num_waiting):
                break
            self.step()
            self.router.check_integrity()
        else:
            raise AssertionError(f"not done after {max_steps} steps: {self.router.load}")

    def _answer(self) -> None:
        for work in self.inbox:
            if self.held + work.context_tokens > self.config.capacity_slots:
                self.num_deferred += 1
                self.router.tell(events.Deferred(work.key))
                continue
            self.standing[work.key] = (work, self.join_after)
            self.admitted_at.setdefault(_origin(work.key), self.now_s)
            self.router.tell(events.Admitted(work.key, work.context_tokens))
        self.inbox.clear()

    def _start_ready(self) -> None:
        for key, (work, steps) in list(self.standing.items()):
            if steps > 0:
                self.standing[key] = (work, steps - 1)
            elif work.kind is WorkKind.PREFILL:
                del self.standing[key]
                self.finished[key] = 0
                self.router.tell(events.Gone(key))
            else:
                del self.standing[key]
                for choice in range(work.num_choices):
                    length = self.lengths[_origin(key)]
                    self.rows.append(Row(work, choice, work.context_tokens, work.produced_tokens, length, 0))
                self.router.tell(events.Started(key))

    def _make_room(self) -> None:
        """Preempt the latest arrivals while the next step would not fit, never the last one (R18)."""
        while len(self.rows) > 1 and self.held + self._needed() > self.config.capacity_slots:
            victim = max(self.rows, key=lambda row: row.work.arrival_s)
            self.rows.remove(victim)
            self.num_preempted += 1
            self.router.tell(events.Preempted(victim.work.key, victim.choice))
            self.router.enqueue(_resumed(victim))

    def _needed(self) -> int:
        grown = [self._rounded(row.tokens - self._shared(row) + 1) - self._rounded(row.tokens - self._shared(row))
                 for row in self.rows]  # fmt: skip
        return sum(grown)

    def _shared(self, row: Row) -> int:
        return row.work.prompt_tokens if row.work.num_choices > 1 else 0

    def _decode(self, row: Row) -> None:
        row.tokens += 1
        row.produced += 1
        natural = row.produced >= row.true_length
        if natural or row.produced >= row.work.max_new_tokens:
            self.rows.remove(row)
            origin = _origin(row.work.key)
            self.finished[origin] = self.finished.get(origin, 0) + 1
            self.router.tell(events.Finished(row.work.key, row.choice, row.produced, natural))


def _origin(key: Hashable) -> Hashable:
    return key[1] if isinstance(key, tuple) and key[0] == "resumed" else key


def _resumed(row: Row) -> QueuedWork:
    return QueuedWork(
        key=("resumed", _origin(row.work.key), row.choice, row.produced),
        kind=WorkKind.RESUMED,
        arrival_s=row.work.arrival_s,
        prompt_tokens=row.work.prompt_tokens,
        max_new_tokens=row.work.max_new_tokens,
        produced_tokens=row.produced,
        min_new_tokens=row.work.min_new_tokens,
    )
