"""How pairs are picked: `services.pd_master.selector` over what workers report each second, and simpler rules.

The simpler ones know every worker's state at the moment they choose, which no gateway does.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from bench.simulate.decode import DecodeWorker
from bench.simulate.fleet import Fleet, Selector
from bench.simulate.prefill import PrefillWorker
from bench.simulate.story import Story
from bench.simulate.trace import BLOCK_TOKENS
from services.common.ipc import AttemptKey
from services.common.messages import Limits, Load, Role, WorkerRef
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.pending_load import PendingLoad
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.selector import Policy, Snapshot, WorkerView, choose

Worker = PrefillWorker | DecodeWorker
T = TypeVar("T", PrefillWorker, DecodeWorker)


class RoundRobin:
    """One after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self._prefill = itertools.cycle(fleet.prefill)
        self._decode = itertools.cycle(fleet.decode)

    def choose(self, story: Story) -> tuple[PrefillWorker, DecodeWorker]:  # noqa: ARG002  whoever is next
        """The next of each."""
        return next(self._prefill), next(self._decode)

    def heartbeat(self) -> None:
        """Nothing is learnt."""

    def arrived(self, worker: Worker, story: Story) -> None:
        """Nothing is learnt."""

    def over(self, story: Story) -> None:
        """Nothing is learnt."""

    def cache_changed(self, worker: PrefillWorker, stored: list[int], evicted: list[int]) -> None:
        """Nothing is learnt."""


class LeastLoaded(RoundRobin):
    """The one with the fewest requests."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._fleet = fleet

    def choose(self, story: Story) -> tuple[PrefillWorker, DecodeWorker]:  # noqa: ARG002  all are alike
        """By numbers alone."""
        return _emptiest(self._fleet.prefill), _emptiest(self._fleet.decode)


class PrefixTrie(LeastLoaded):
    """The longest known prefix where it is half the prompt and loads are even, else the fewest requests.

    What a gateway without cache events does: it remembers where it sent what, without knowing what was evicted.
    """

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._sent: dict[str, set[int]] = {worker.name: set() for worker in fleet.prefill}

    def choose(self, story: Story) -> tuple[PrefillWorker, DecodeWorker]:
        """By memory of what was sent where."""
        workers, blocks = self._fleet.prefill, story.arrival.blocks
        counts = [worker.num_inside for worker in workers]
        uneven = max(counts) - min(counts) > 8 and max(counts) > 1.5 * min(counts)
        best = max(workers, key=lambda worker: self._match(worker, blocks))
        if uneven or 2 * self._match(best, blocks) <= len(blocks):
            best = _emptiest(workers)
        self._sent[best.name].update(blocks)
        return best, _emptiest(self._fleet.decode)

    def _match(self, worker: PrefillWorker, blocks: tuple[int, ...]) -> int:
        sent = self._sent[worker.name]
        return sum(1 for _ in itertools.takewhile(sent.__contains__, blocks))


class Ours:
    """`selector.choose` over the loads of the last heartbeat and what was sent since."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._masters = [PendingLoad() for _ in range(fleet.setup.num_masters)]
        self._draws = random.Random(1)
        workers: list[Worker] = [*fleet.prefill, *fleet.decode]
        self._workers = {one.name: one for one in workers}
        self._refs = {name: WorkerRef(name, "1") for name in self._workers}
        self._reached = {self._refs[one.name]: fleet.setup.costs.transfer_gb_per_s for one in fleet.decode}
        self._loads = {name: Load() for name in self._workers}
        self._index = PrefixIndex()
        self._changes: list[tuple[WorkerRef, list[int], list[int]]] = []
        self._pairs: dict[int, tuple[WorkerRef, WorkerRef]] = {}
        """Of the requests that are not over; a master has every so many of them."""

    def choose(self, story: Story) -> tuple[PrefillWorker, DecodeWorker]:
        """As its master would."""
        pending = self._master(story)
        views = tuple(self._view(worker, pending) for worker in self._workers.values())
        matched = self._index.match(story.arrival.blocks)
        cached = {ref: count * BLOCK_TOKENS for ref, count in matched.items()}
        snapshot = Snapshot(views, self._draws.random(), cached)
        policy = Policy(self._fleet.setup.missing_weight, local_tokens=0)
        pair = choose(_request(story), frozenset(), snapshot, policy)
        assert pair.decode is not None
        prefill, decode = self._workers[pair.prefill.worker_id], self._workers[pair.decode.worker.worker_id]
        assert isinstance(prefill, PrefillWorker)
        assert isinstance(decode, DecodeWorker)
        self._pairs[story.number] = refs = self._refs[prefill.name], self._refs[decode.name]
        for ref in refs:
            pending.sent(ref, _key(story), story.arrival.prompt_tokens)
        return prefill, decode

    def heartbeat(self) -> None:
        """Loads as workers report them, and what their caches stored and evicted since."""
        for ref, stored, evicted in self._changes:
            self._index.stored(ref, stored)
            self._index.evicted(ref, evicted)
        self._changes.clear()
        for name, worker in self._workers.items():
            load = worker.router.load
            self._loads[name] = Load(
                queued_requests=load.num_waiting,
                queued_tokens=load.waiting_tokens,
                running_requests=load.num_running,
                max_queued_requests=worker.config.max_waiting,
                admitted_peak_ratio=load.admitted_peak_ratio,
                demand_ratio=load.demand_ratio,
                predicted_wait_s=load.predicted_wait_s,
                tokens_per_s=worker.tokens_per_s,
            )
        held = [Counter(ref for number in numbers for ref in self._pairs[number]) for numbers in self._by_master()]
        for ref in self._refs.values():
            for pending, own in zip(self._masters, held, strict=True):
                pending.heartbeat(ref, own[ref], sum(one[ref] for one in held))

    def _master(self, story: Story) -> PendingLoad:
        return self._masters[story.number % len(self._masters)]

    def _by_master(self) -> list[list[int]]:
        count = len(self._masters)
        return [[number for number in self._pairs if number % count == master] for master in range(count)]

    def arrived(self, worker: Worker, story: Story) -> None:
        """The next heartbeat counts it."""
        self._master(story).arrived(self._refs[worker.name], _key(story))

    def over(self, story: Story) -> None:
        """It counts no more."""
        num_tokens = story.arrival.prompt_tokens + (story.output_tokens if story.finished_s is not None else 0)
        for ref in self._pairs.pop(story.number, ()):
            self._master(story).ended(ref, _key(story), num_tokens)

    def cache_changed(self, worker: PrefillWorker, stored: list[int], evicted: list[int]) -> None:
        """The next heartbeat tells."""
        self._changes.append((self._refs[worker.name], stored, evicted))

    def _view(self, worker: Worker, known: PendingLoad) -> WorkerView:
        is_prefill = isinstance(worker, PrefillWorker)
        config, ref = worker.config, self._refs[worker.name]
        slots, pending = config.capacity_slots, known.of(ref)
        return WorkerView(
            worker=ref,
            role=Role.PREFILL if is_prefill else Role.DECODE,
            group="g",
            model="m",
            address=worker.name,
            limits=Limits(slots, config.max_running, slots, 1, (), config.chunk_tokens),
            load=self._loads[worker.name],
            takes_work=True,
            proven=self._reached if is_prefill else {},
            pending_requests=pending.num_requests,
            pending_tokens=pending.num_tokens,
            freed_tokens=pending.num_freed,
        )


def _emptiest(workers: list[T]) -> T:
    return min(workers, key=lambda worker: worker.num_inside)


def _key(story: Story) -> AttemptKey:
    return AttemptKey(str(story.number), 0)


def _request(story: Story) -> Request:
    ids = [0] * story.arrival.prompt_tokens
    return Request(str(story.number), "m", ids, SamplingParams(), StopParams(story.max_new_tokens))


SELECTORS: dict[str, Callable[[Fleet], Selector]] = {
    "ours": Ours,
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "prefix trie": PrefixTrie,
}
