"""A prefill worker: the real Router over prompts that are computed in chunks, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bench.simulate.blocks import BlockCache
from bench.simulate.cost import Costs
from bench.simulate.story import Story
from bench.simulate.timeline import Timeline
from bench.simulate.trace import BLOCK_TOKENS
from services.common.errors import SluiceError
from services.engine.config import PUSH_TAIL_TOKENS
from services.router import events
from services.router.router import Outlets, Router
from services.router.work import QueuedWork, RouterConfig

_AT_ONCE_S = 1e-9


class PrefillEvents(Protocol):
    """Whom a prefill worker tells."""

    def admitted(self, story: Story) -> None:
        """Its computing begins: time to reserve."""

    def reserve_first(self, story: Story) -> None:
        """It will be let in once a decode worker has granted."""

    def computed(self, story: Story) -> None:
        """Its KV is complete."""

    def turned_away(self, story: Story, why: str) -> None:
        """It waited too long."""

    def cache_changed(self, worker: PrefillWorker, stored: list[int], evicted: list[int]) -> None:
        """Its prefix cache holds other blocks now."""


@dataclass(slots=True, eq=False)
class _Prompt:
    story: Story
    left: int


class PrefillWorker:
    """One engine and its Router. Keys are the stories' numbers."""

    def __init__(
        self,
        name: str,
        time: Timeline,
        costs: Costs,
        config: RouterConfig,
        told: PrefillEvents,
        decode_busy_s: Callable[[], float],
    ) -> None:
        """decode_busy_s: how long decode workers have stepped until now, in all."""
        self.name = name
        self.config = config
        self.cache = BlockCache(config.capacity_slots // BLOCK_TOKENS)
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.busy_s = 0.0
        self.tokens_per_s = 0.0
        """Of the last step."""
        self.router = Router(config, Outlets(self._let_in, self._give_up, self._reserve_first), time.clock)
        self._time = time
        self._costs = costs
        self._told = told
        self._decode_busy_s = decode_busy_s
        self._stories: dict[int, Story] = {}
        """All that wait or are in."""
        self._inside: dict[int, _Prompt] = {}
        self._queue: deque[_Prompt] = deque()
        self._held = 0
        self._stepping = False

    @property
    def num_inside(self) -> int:
        """Requests that wait or are computed here."""
        return len(self._stories)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens to be computed, as the Router knows them."""
        return self.router.load.waiting_tokens

    # ----------------------------------------------------------------------------------------------- from the fleet

    def submit(self, story: Story, work: QueuedWork) -> None:
        """Queue a prompt. Raises SluiceError for what cannot wait."""
        self.router.enqueue(work)
        self._stories[story.number] = story
        self.router.decide()

    def granted(self, story: Story) -> None:
        """A decode worker has room for it."""
        if story.number in self._stories:
            self.router.tell(events.Granted(story.number))
            if story.number not in self._inside:
                self.router.decide()

    def release(self, story: Story) -> None:
        """It was handed over, or is given up."""
        self._stories.pop(story.number, None)
        if self.router.cancel(story.number):
            return
        prompt = self._inside.pop(story.number, None)
        if prompt is not None:
            self._held -= story.arrival.prompt_tokens
            if prompt in self._queue:
                self._queue.remove(prompt)
            self.router.tell(events.Gone(story.number))
            self.router.decide()

    def heartbeat(self) -> None:
        """A second has passed: the Router looks at its queue even if nothing else happened."""
        if self.router.num_waiting:
            if not self._stepping:
                self.router.tell(events.Idle(self._held))
            self.router.decide()

    # ---------------------------------------------------------------------------------------------- from the Router

    def _let_in(self, work: QueuedWork) -> None:
        number = _number(work)
        tokens = work.prompt_tokens
        if self._held + tokens > self.config.capacity_slots:
            self.router.tell(events.Deferred(number))
            return
        story = self._stories[number]
        story.admitted_s = self._time.now_s
        # The last token is always computed: its logits are what the first output is sampled from.
        story.cached_tokens = min(self.cache.match(story.arrival.blocks) * BLOCK_TOKENS, tokens - 1)
        self.cached_tokens += story.cached_tokens
        self.computed_tokens += tokens - story.cached_tokens
        prompt = _Prompt(story, tokens - story.cached_tokens)
        self._inside[number] = prompt
        self._queue.append(prompt)
        self._held += tokens
        self.router.tell(events.Admitted(number, tokens, story.cached_tokens))
        self._told.admitted(story)
        self._begin()

    def _give_up(self, work: QueuedWork, error: SluiceError) -> None:
        number = _number(work)
        self._told.turned_away(self._stories.pop(number), str(error))

    def _reserve_first(self, work: QueuedWork) -> None:
        number = _number(work)
        self._told.reserve_first(self._stories[number])

    # ------------------------------------------------------------------------------------------------------- stepping

    def _begin(self) -> None:
        if self._stepping or not self._queue:
            return
        budget, work_s = self.config.step_budget_tokens, self._costs.prefill_step_s
        chunks: list[tuple[_Prompt, int]] = []
        for prompt in self._queue:
            tokens = min(prompt.left, budget)
            if tokens == prompt.left > PUSH_TAIL_TOKENS and prompt is self._queue[-1]:
                tokens -= PUSH_TAIL_TOKENS
            work_s += self._costs.chunk_s(tokens, prompt.story.arrival.prompt_tokens - prompt.left)
            chunks.append((prompt, tokens))
            budget -= tokens
            if not budget:
                break
        work_s = max(work_s, self._costs.step_s)
        self._stepping = True
        due = partial(self._due, work_s, self._time.now_s, self._decode_busy_s(), chunks)
        self._time.after(work_s, due)

    def _due(self, work_s: float, began_s: float, busy_before_s: float, chunks: list[tuple[_Prompt, int]]) -> None:
        """A step of so much work would be through, but for what decode workers on the same machine slowed it."""
        took_s = self._time.now_s - began_s
        left_s = work_s - took_s + self._costs.slowed_s(self._decode_busy_s() - busy_before_s)
        if left_s > _AT_ONCE_S:
            self._time.after(left_s, partial(self._due, work_s, began_s, busy_before_s, chunks))
        else:
            self._end(took_s, chunks)

    def _end(self, took_s: float, chunks: list[tuple[_Prompt, int]]) -> None:
        self._stepping = False
        self.busy_s += took_s
        chunks = [(prompt, tokens) for prompt, tokens in chunks if prompt.story.number in self._inside]
        for prompt, tokens in chunks:
            prompt.left -= tokens
        num_tokens = sum(tokens for _, tokens in chunks)
        self.tokens_per_s = num_tokens / took_s
        computed = tuple((prompt.story.number, prompt.left) for prompt, _ in chunks)
        self.router.tell(events.Stepped(took_s, 0, num_tokens, self._held, computed))
        for prompt, _ in chunks:
            if prompt.left == 0:
                self._queue.remove(prompt)
                stored, evicted = self.cache.insert(prompt.story.arrival.blocks)
                self._told.cache_changed(self, stored, evicted)
                self._told.computed(prompt.story)
        self.router.decide()
        self._begin()


def _number(work: QueuedWork) -> int:
    assert isinstance(work.key, int)
    return work.key
