"""A decode worker: the real Router over a pool of rows, stepping in simulated time.

A reservation holds its prompt's slots from the grant; it joins when its KV is there and decodes from the next step on.
Where the next step lacks slots, reservations without KV are revoked, then the sequence of the latest arrival is
preempted, never the last one (R18); it comes back through the Router and is computed again in chunks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bench.simulate.cost import Costs
from bench.simulate.rows import Row, Rows
from bench.simulate.story import Story
from bench.simulate.timeline import Timeline
from services.common.errors import SluiceError
from services.router import events
from services.router.output_length import OutputLengths
from services.router.router import Outlets, Router
from services.router.scheduler import Planner
from services.router.work import QueuedWork, RouterConfig, WorkKind

Key = tuple[int, int]
_DECIDE_EVERY = 4
"""Steps between two decisions when nothing but a step has happened."""


class DecodeEvents(Protocol):
    """Whom a decode worker tells."""

    def granted(self, key: Key, story: Story) -> None:
        """Room is there for this prompt's KV."""

    def turned_away(self, story: Story, why: str) -> None:
        """It will not be granted."""

    def revoked(self, story: Story) -> None:
        """A grant is taken back."""

    def finished(self, story: Story) -> None:
        """Its last token is out."""

    def gap(self, seconds: float, times: int) -> None:
        """So many tokens came so long after the ones before them."""


@dataclass(slots=True, eq=False)
class _Resumed:
    """A preempted sequence that is computed again."""

    key: Key
    story: Story
    context: int
    produced: int
    left: int


class DecodeWorker:
    """One engine and its Router."""

    def __init__(
        self,
        name: str,
        time: Timeline,
        costs: Costs,
        config: RouterConfig,
        told: DecodeEvents,
        lengths: OutputLengths,
        planner: Planner,
    ) -> None:
        self.name = name
        self.config = config
        self.tokens_per_s = 0.0
        """Of the last step."""
        self.router = Router(config, Outlets(self._let_in, self._give_up, lambda _: None), time.clock, lengths, planner)
        self._time = time
        self._costs = costs
        self._told = told
        self._stories: dict[Key, Story] = {}
        """Waiting ones."""
        self._reserved: dict[Key, Story] = {}
        self._reserved_slots = 0
        self._joining: list[Row] = []
        self._rows = Rows(config.extent_slots)
        self._resumed: deque[_Resumed] = deque()
        self._preempted_at: dict[int, float] = {}
        self._attempts = 1_000_000
        """Numbers for what is queued again here, apart from the fleet's."""
        self._stepping = False
        self._stepped_s, self._began_s = 0.0, 0.0
        """Seconds of steps that have ended; when the last one began."""
        self._changed = False

    @property
    def num_inside(self) -> int:
        """Requests that wait or run here."""
        return len(self._stories) + len(self._reserved) + len(self._joining) + len(self._rows) + len(self._resumed)

    @property
    def held(self) -> int:
        """Slots occupied."""
        joining = sum(row.context for row in self._joining)
        return self._rows.slots + self._reserved_slots + joining + sum(one.context for one in self._resumed)

    @property
    def busy_s(self) -> float:
        """How long it has stepped until now."""
        return self._stepped_s + (self._time.now_s - self._began_s if self._stepping else 0.0)

    # ----------------------------------------------------------------------------------------------- from the fleet

    def reserve(self, key: Key, story: Story, work: QueuedWork) -> None:
        """Queue a reservation. Raises SluiceError for what cannot wait."""
        self.router.enqueue(work)
        self._stories[key] = story
        self.router.decide()

    def cancel(self, key: Key) -> None:
        """Forget a reservation that has not joined."""
        self._stories.pop(key, None)
        if not self.router.cancel(key) and key in self._reserved:
            self._release(key)

    def join(self, key: Key) -> None:
        """Its KV is here."""
        story = self._reserved.pop(key)
        self._reserved_slots -= story.arrival.prompt_tokens
        self._joining.append(Row(key, story, story.arrival.prompt_tokens, 1, 0))
        self._begin()

    def heartbeat(self) -> None:
        """A second has passed: the Router looks at its queue even if nothing else happened."""
        if self.router.num_waiting:
            if not self._stepping:
                self.router.tell(events.Idle(self.held))
            self.router.decide()

    # ---------------------------------------------------------------------------------------------- from the Router

    def _let_in(self, work: QueuedWork) -> None:
        key = _key(work)
        if self.held + work.context_tokens > self.config.capacity_slots:
            self.router.tell(events.Deferred(key))
            return
        story = self._stories.pop(key)
        if work.kind is WorkKind.RESUMED:
            tokens = work.context_tokens
            self._resumed.append(_Resumed(key, story, tokens, work.produced_tokens, tokens))
        else:
            self._reserved[key] = story
            self._reserved_slots += work.prompt_tokens
        self.router.tell(events.Admitted(key, work.context_tokens))
        if work.kind is WorkKind.RESUMED:
            self._begin()
        else:
            self._told.granted(key, story)

    def _give_up(self, work: QueuedWork, error: SluiceError) -> None:
        key = _key(work)
        self._told.turned_away(self._stories.pop(key), str(error))

    # ------------------------------------------------------------------------------------------------------- stepping

    def _begin(self) -> None:
        if self._stepping:
            return
        for row in self._joining:
            self._start(row)
        self._joining.clear()
        if not self._rows and not self._resumed:
            return
        revoked = self._make_room()
        self._rows.grow()
        chunk = self._resumed[0] if self._resumed else None
        tokens = min(chunk.left, self.config.chunk_tokens) if chunk else 0
        took_s = self._costs.decode_s(len(self._rows), self._rows.context_tokens) if len(self._rows) else 0.0
        took_s += self._costs.chunk_s(tokens, chunk.context - chunk.left) if chunk else 0.0
        self._stepping, self._began_s = True, self._time.now_s
        self._time.after(took_s, partial(self._end, took_s, chunk, tokens))
        for story in revoked:
            self._told.revoked(story)

    def _start(self, row: Row) -> None:
        row.since = self._rows.step
        self.router.tell(events.Started(row.key))
        if row.end <= row.since:
            self._finish(row)
        else:
            self._rows.add(row)

    def _end(self, took_s: float, chunk: _Resumed | None, tokens: int) -> None:
        self._stepping = False
        self._stepped_s += took_s
        num_rows = len(self._rows)
        self._told.gap(took_s, num_rows)
        self.tokens_per_s = num_rows / took_s
        for row in self._rows.advance() if num_rows else ():
            self._rows.remove(row)
            self._finish(row)
        computed = ((chunk.key, chunk.left - tokens),) if chunk else ()
        self.router.tell(events.Stepped(took_s, num_rows, tokens, self.held, computed))
        if chunk is not None:
            self._computed(chunk, tokens)
        if self.router.num_waiting and (self._changed or self._rows.step % _DECIDE_EVERY == 0):
            self._changed = False
            self.router.decide()
        self._begin()

    def _computed(self, chunk: _Resumed, tokens: int) -> None:
        chunk.left -= tokens
        if chunk.left == 0:
            self._resumed.popleft()
            stalled_s = self._time.now_s - self._preempted_at.pop(chunk.story.number)
            self._told.gap(stalled_s, 1)
            self._joining.append(Row(chunk.key, chunk.story, chunk.context, chunk.produced, 0))

    def _finish(self, row: Row) -> None:
        self._changed = True
        outputs = row.story.output_tokens
        self.router.tell(events.Finished(row.key, 0, outputs, natural=outputs < row.story.max_new_tokens))
        self._told.finished(row.story)

    # ----------------------------------------------------------------------------------------------------------- room

    def _make_room(self) -> list[Story]:
        """For the extents of the next step. Returns whose grants were taken back: they are told once the step has its
        extents, or they would ask again, get back what they had, and the step would want it again, for ever."""
        revoked = []
        while self.held + self._rows.slots_wanted > self.config.capacity_slots:
            without_bytes = [key for key, story in self._reserved.items() if story.computed_s is None]
            if without_bytes:
                youngest = max(without_bytes, key=lambda key: (self._reserved[key].arrival.at_s, key))
                revoked.append(self._reserved[youngest])
                self._release(youngest)
            elif len(self._rows) + len(self._resumed) > 1 and len(self._rows):
                self._preempt(self._rows.youngest())
            else:
                break
        return revoked

    def _release(self, key: Key) -> None:
        story = self._reserved.pop(key)
        self._reserved_slots -= story.arrival.prompt_tokens
        self._changed = True
        self.router.tell(events.Gone(key))

    def _preempt(self, row: Row) -> None:
        self._changed = True
        story, outputs = row.story, row.produced + self._rows.step - row.since
        self._rows.remove(row)
        story.num_preemptions += 1
        self._preempted_at[story.number] = self._time.now_s
        self._attempts += 1
        key = (story.number, self._attempts)
        self.router.tell(events.Preempted(row.key))
        self._stories[key] = story
        prompt, most = story.arrival.prompt_tokens, story.max_new_tokens
        again = QueuedWork(key, WorkKind.RESUMED, story.arrival.at_s, prompt, most, outputs)
        self.router.enqueue(again)


def _key(work: QueuedWork) -> Key:
    assert isinstance(work.key, tuple)
    return work.key
