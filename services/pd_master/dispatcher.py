"""Finds workers for requests and keeps them running through failures: the protocol core (`Attempts`) with its edges.

In: requests from the API, messages from the registry's links, timers. Out: messages to workers, output to clients. The
core decides; here its effects are carried out, in order and at once.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from services.common.messages import Peer, Reconcile, WorkerMessage, WorkerRef
from services.common.request import Request
from services.pd_master.alarm import Alarm
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Cached, Deliver, Effect, End, Scored, Send
from services.pd_master.generation import ClientGeneration
from services.pd_master.inflight import Pair
from services.pd_master.pair_faults import PairFaults
from services.pd_master.pending_load import PendingLoad
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.recovery import MAX_ATTEMPTS
from services.pd_master.registry import Registry
from services.pd_master.selector import USUAL, Policy, Snapshot, choose, choose_decode


class SnapshotChooser:
    """The selector, on what the registry knows now. The prompt is hashed once for each choice that is made, and not at
    all where there is no choice."""

    def __init__(self, snapshot: Callable[[], Snapshot], prefixes: PrefixIndex, policy: Policy) -> None:
        self._snapshot = snapshot
        self._prefixes = prefixes
        self._policy = policy

    def pair(self, request: Request, excluded: frozenset[WorkerRef]) -> Pair:
        """As `selector.choose`."""
        return choose(request, excluded, self._snapshot_for(request), self._policy)

    def decode(self, request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef]) -> Peer:
        """As `selector.choose_decode`."""
        return choose_decode(request, prefill, excluded, self._snapshot_for(request))

    def _snapshot_for(self, request: Request) -> Snapshot:
        snapshot = self._snapshot()
        if request.sampling.num_prompt_logprobs is not None:  # scoring computes the whole prompt, whoever holds it
            return snapshot
        prompt_ids = request.prompt_ids
        cached = _Cached(lambda: self._prefixes.cached_tokens(prompt_ids))
        return Snapshot(snapshot.workers, snapshot.draw, cached)


class _Cached(Mapping[WorkerRef, int]):
    """`PrefixIndex.cached_tokens` when it is first asked for: most looks for a place end before."""

    def __init__(self, find: Callable[[], dict[WorkerRef, int]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> dict[WorkerRef, int]:
        return self._find()

    def __getitem__(self, worker: WorkerRef) -> int:
        return self._found[worker]

    def __iter__(self) -> Iterator[WorkerRef]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, worker: WorkerRef, default: Any = None) -> Any:  # noqa: ANN401 - as Mapping's, without its exception
        return self._found.get(worker, default)


class PdDispatcher:
    """One per master process; all calls come from its event loop. `pending` is the registry's as well."""

    def __init__(
        self,
        registry: Registry,
        pending: PendingLoad,
        *,
        client_buffer_bytes: int,
        client_stall_s: float,
        max_attempts: int = MAX_ATTEMPTS,
        policy: Policy = USUAL,
    ) -> None:
        self._registry = registry
        self._faults = PairFaults()
        chooser = SnapshotChooser(self._snapshot, registry.prefixes, policy)
        self._attempts = Attempts(chooser, pending, max_attempts, self._faults)
        self._client_buffer_bytes = client_buffer_bytes
        self._client_stall_s = client_stall_s
        self._generations: dict[str, ClientGeneration] = {}
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._on_alarm)

    def _snapshot(self) -> Snapshot:
        return self._faults.without(self._registry.snapshot(), self._loop.time())

    @property
    def num_running(self) -> int:
        """Requests that are not over."""
        return len(self._attempts)

    async def submit(self, request: Request) -> ClientGeneration:
        """Start a request. Raises NoWorkerError, OverloadedError, ContextLengthError."""
        effects = self._attempts.submit(request, self._loop.time())
        request_id = request.request_id
        generation = ClientGeneration(lambda: self._abort(request_id), self._client_buffer_bytes, self._client_stall_s)
        self._generations[request_id] = generation
        self._run(effects)
        return generation

    def _abort(self, request_id: str) -> None:
        self._generations.pop(request_id, None)
        self._run(self._attempts.abort(request_id))

    # --------------------------------------------------------------------------------------------- from the registry

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """What this master believes the worker holds."""
        return self._attempts.reconcile(worker)

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message about attempts, or a heartbeat."""
        self._run(self._attempts.from_worker(worker, message, self._loop.time()))

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        """The worker will not come back as this incarnation."""
        self._run(self._attempts.worker_lost(worker, self._loop.time(), crashed=crashed))

    def worker_stalled(self, worker: WorkerRef) -> None:
        """Its engine stands still."""
        self._run(self._attempts.worker_stalled(worker, self._loop.time()))

    # -------------------------------------------------------------------------------------------------------- effects

    def _run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):  # one for every token: all else is rare beside it
                generation = self._generations.get(effect.request_id)
                if generation is not None:
                    generation.push(effect.delta)
            else:
                self._carry_out(effect)
        self._alarm.set(self._attempts.next_timer_s)

    def _carry_out(self, effect: Send | Cached | Scored | End) -> None:
        match effect:
            case Send(worker=worker, message=message):
                self._registry.say(worker, message)
            case Cached(request_id=request_id, num_tokens=num_tokens):
                generation = self._generations.get(request_id)
                if generation is not None:
                    generation.cached_tokens = num_tokens
            case Scored(request_id=request_id, logprobs=logprobs):
                generation = self._generations.get(request_id)
                if generation is not None:
                    generation.prompt_logprobs = logprobs
            case End(request_id=request_id, error=error):
                generation = self._generations.pop(request_id, None)
                if generation is not None:
                    generation.end(error)

    def _on_alarm(self) -> None:
        self._run(self._attempts.tick(self._loop.time()))
