"""Which workers an attempt runs on: what is known of them in, a pair out. Pure.

Workers pair up within a group, and only where a test page has crossed (R13, R16). The prefill worker is the one
where the prompt is predicted to be computed soonest: its wait, and what of the prompt its prefix cache lacks. The
decode worker is the one with the lowest predicted demand; among nearly equals, one to which the KV that it lacks moves
fastest. In both what was sent since they reported counts from then on, and on decode workers what has ended since
counts no more, by what this master knows of both. Among those nearly as good as the best one is drawn, so that several
masters with the same view do not all take the same one. A mixed worker takes a request when its wait is no longer than
that of the best pair. A decode worker computes a prompt itself when little of it is missing there and that little is
computed sooner than the prompt would come from the prefill worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from services.common.errors import ContextLengthError, InvalidRequestError, NoWorkerError, OverloadedError, SluiceError
from services.common.messages import Limits, Load, Peer, Role, WorkerRef
from services.common.request import Request
from services.pd_master.inflight import Pair

NEAR_WAIT_S = 0.02
NEAR_DEMAND = 0.05
NEAR_MOVE_S = 0.02
"""How much worse than the best one still counts as equal."""
LOCAL_TOKENS = 256
"""The most a decode worker computes of a prompt: 6 ms of a large card, during which its sequences wait."""
LOCAL_COST = 2.0
"""What a second of computing costs on a decode worker, in seconds of one request's: others wait meanwhile."""
LEAST_TOKENS_PER_S = 5000.0
"""What a worker reports is what it did in the last second, which is little when there was little to do."""
MISSING_WEIGHT = 6.0
"""What a prompt token costs that a worker's prefix cache lacks, in tokens of waiting. More than 1, since computing it
also takes a second place in a cache, where it evicts what the next prompts would have found. The least of
1, 4, 6 and 16 with which 8 and 16 workers reach 90% of the hits of one cache of all workers' size on the first half of
a trace: 93% and 92%, where 1 reaches 75% and 73%, and 4 91% and 89%. On the second half: 95% and 94%. What it costs is
in the tail: the 99th percentile of the time to first token is 2 to 4% above that with 1."""
EXTENT_SLOTS = 32
"""Decode grows in extents: each choice may occupy up to this much beyond its tokens."""

T = TypeVar("T")


class WorkerView(msgspec.Struct, frozen=True):
    """One worker with a session, as the selector sees it."""

    worker: WorkerRef
    role: Role
    group: str
    model: str
    address: str
    limits: Limits
    load: Load
    takes_work: bool
    """Ready, not draining, and heard of lately."""
    proven: Mapping[WorkerRef, float]
    """Decode workers that this prefill worker has reached -> 10^9 bytes a second that a test page crossed at."""
    pending_requests: int
    pending_tokens: int
    """Dispatches that `load` does not contain yet: this master's requests, and the tokens of all masters' by what this
    one's are (`pending_load`)."""
    freed_tokens: int = 0
    """Of what has ended since and `load` still contains, likewise."""
    draining: bool = False
    """It said so; for people, since `takes_work` is false then."""

    @property
    def wait_s(self) -> float:
        """Predicted wait of a prompt that is sent now."""
        speed = max(self.load.tokens_per_s, LEAST_TOKENS_PER_S)
        return self.load.predicted_wait_s + self.pending_tokens / speed

    @property
    def demand(self) -> float:
        """Predicted peak over the pool, with all that waits and is on its way."""
        changed = self.pending_tokens - self.freed_tokens
        return max(self.load.demand_ratio + changed / max(self.limits.num_slots, 1), 0.0)

    @property
    def is_full(self) -> bool:
        """Whether its queue has no place."""
        bound = self.load.max_queued_requests
        return bound > 0 and self.load.queued_requests + self.pending_requests >= bound


class Snapshot(msgspec.Struct, frozen=True):
    """All workers at one moment, and a draw for ties."""

    workers: tuple[WorkerView, ...]
    draw: float
    """Uniform in [0, 1)."""
    cached_tokens: Mapping[WorkerRef, int] = {}
    """Leading tokens of this request's prompt that prefix caches hold; workers that hold none may be left out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What operators and simulations may set."""

    missing_weight: float = MISSING_WEIGHT
    local_tokens: int = LOCAL_TOKENS
    """0: decode workers compute no prompts."""


USUAL = Policy()


def choose(request: Request, excluded: frozenset[WorkerRef], snapshot: Snapshot, policy: Policy = USUAL) -> Pair:
    """Pick a pair, or a mixed worker. Raises NoWorkerError when a role is missing, ContextLengthError when the request
    is larger than every worker, InvalidRequestError when none runs so many choices at once, OverloadedError (with
    Retry-After) when all queues are full."""
    usable = [view for view in snapshot.workers if view.takes_work and view.model == request.model]
    wanted = [view for view in usable if view.worker not in excluded]
    able = _able_to_begin(request, wanted)
    if not able:
        raise _nobody_able(request, usable, wanted)
    free = [view for view in able if not view.is_full]
    if not free:
        wait_s = min(view.wait_s for view in able)
        raise OverloadedError("the queues of all workers are full", retry_after_s=min(max(wait_s, 1.0), 60.0))
    cost = _time_to_compute(free, snapshot.cached_tokens, policy.missing_weight)
    first = _near_best(free, cost, NEAR_WAIT_S, snapshot.draw)
    if first.role is Role.MIXED:
        return Pair(first.worker, None)
    second = _choose_decode(request, first, _partners(request, first, wanted), snapshot)
    if _computes_sooner(request, first, second, snapshot, policy):
        return Pair(second.worker, None)
    return Pair(first.worker, _peer(second))


def choose_decode(request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef], snapshot: Snapshot) -> Peer:
    """Pick another decode worker for a prompt that a prefill worker holds. Raises NoWorkerError when there is none."""
    holder = next((view for view in snapshot.workers if view.worker == prefill), None)
    wanted = [view for view in snapshot.workers if view.takes_work and view.worker not in excluded]
    partners = [] if holder is None else _partners(request, holder, wanted)
    if holder is None or not partners:
        raise NoWorkerError("no other decode worker is left for a prompt that is computed", retry_after_s=1.0)
    return _peer(_choose_decode(request, holder, partners, snapshot))


def count_pairs(snapshot: Snapshot) -> int:
    """How many ways a request could take now: proven pairs and mixed workers."""
    usable = [view for view in snapshot.workers if view.takes_work]
    mixed = sum(view.role is Role.MIXED for view in usable)
    return mixed + sum(_are_paired(one, other) for one in usable for other in usable)


def most_slots(model: str, snapshot: Snapshot) -> int:
    """Slots of the largest pool that decodes for a model now; 0 when there is none."""
    views = [view for view in snapshot.workers if view.takes_work and view.model == model]
    return max((view.limits.num_slots for view in views if view.role is not Role.PREFILL), default=0)


def output_room(num_prompt_tokens: int, num_choices: int, num_slots: int) -> int:
    """Most output tokens a choice with which a request fits an idle pool (R20); below 1 when its prompt does not."""
    return (num_slots - 1 - num_prompt_tokens) // num_choices - EXTENT_SLOTS


def _are_paired(prefill: WorkerView, decode: WorkerView) -> bool:
    return (
        prefill.role is Role.PREFILL
        and decode.role is Role.DECODE
        and prefill.group == decode.group
        and decode.worker in prefill.proven
    )


def _able_to_begin(request: Request, wanted: list[WorkerView]) -> list[WorkerView]:
    """Mixed workers that can hold it, and prefill workers that can compute it and have a decode worker for it.

    Takes P + D steps where pairs are proven, not P x D: a prefill worker needs one decode worker here, and which one it
    gets is asked for the chosen one alone.
    """
    mixed, prefill, fitting = [], [], dict[str, set[WorkerRef]]()
    for view in wanted:
        if view.role is Role.PREFILL:
            if len(request.prompt_ids) < view.limits.num_slots and _has_places(request, view.limits):
                prefill.append(view)
        elif _fits_decode(request, view.limits):
            if view.role is Role.MIXED:
                mixed.append(view)
            else:
                fitting.setdefault(view.group, set()).add(view.worker)
    return mixed + [
        view for view in prefill if view.group in fitting and not fitting[view.group].isdisjoint(view.proven)
    ]


def _partners(request: Request, prefill: WorkerView, views: list[WorkerView]) -> list[WorkerView]:
    """Decode workers that can hold what this one computes."""
    return [view for view in views if _are_paired(prefill, view) and _fits_decode(request, view.limits)]


def _fits_decode(request: Request, limits: Limits) -> bool:
    """Whether prompt and all output fit an idle pool, and all choices run at once (R20)."""
    room = output_room(len(request.prompt_ids), request.num_choices, limits.num_slots)
    return request.stop.max_new_tokens <= room and _has_places(request, limits)


def _has_places(request: Request, limits: Limits) -> bool:
    return request.num_choices <= limits.max_running_requests


def _time_to_compute(
    views: list[WorkerView], cached_tokens: Mapping[WorkerRef, int], missing_weight: float
) -> Callable[[WorkerView], float]:
    """Seconds until a worker would have computed the prompt, beyond those of the one whose cache holds most of it.

    All are taken to be as fast as the fastest was lately: an idle one reports little because it had little to do.
    """
    speed = max(LEAST_TOKENS_PER_S, *(view.load.tokens_per_s for view in views))
    most = max(cached_tokens.get(view.worker, 0) for view in views)

    def cost(view: WorkerView) -> float:
        missing = most - cached_tokens.get(view.worker, 0)
        return view.load.predicted_wait_s + (view.pending_tokens + missing_weight * missing) / speed

    return cost


def _choose_decode(request: Request, prefill: WorkerView, views: list[WorkerView], snapshot: Snapshot) -> WorkerView:
    def demand(view: WorkerView) -> float:
        held = snapshot.cached_tokens.get(view.worker, 0)
        return view.demand - held / max(view.limits.num_slots, 1)

    close = _near(views, demand, NEAR_DEMAND)
    return _near_best(close, lambda view: _move_s(request, prefill, view, snapshot), NEAR_MOVE_S, snapshot.draw)


def _move_s(request: Request, prefill: WorkerView, decode: WorkerView, snapshot: Snapshot) -> float:
    """Seconds in which the KV that a decode worker lacks would cross; 0 where size or speed is unknown."""
    gb_per_s = prefill.proven[decode.worker]
    missing = len(request.prompt_ids) - snapshot.cached_tokens.get(decode.worker, 0)
    return missing * decode.limits.kv_bytes_per_token / (gb_per_s * 1e9) if gb_per_s else 0.0


def _computes_sooner(
    request: Request, prefill: WorkerView, decode: WorkerView, snapshot: Snapshot, policy: Policy
) -> bool:
    """Whether the decode worker would have the prompt computed before it came from the prefill worker.

    Both are taken to compute as fast as the prefill worker did lately. The decode worker's own wait counts either way,
    beside the computing elsewhere or before the computing here, so that it does not take more than it can compute.
    """
    prompt, cached = len(request.prompt_ids), snapshot.cached_tokens
    missing = prompt - cached.get(decode.worker, 0)
    if missing > policy.local_tokens or decode.is_full:
        return False
    speed = max(LEAST_TOKENS_PER_S, prefill.load.tokens_per_s)
    local_s = decode.load.predicted_wait_s + LOCAL_COST * missing / speed
    computed_s = prefill.wait_s + (prompt - cached.get(prefill.worker, 0)) / speed
    remote_s = max(computed_s, decode.load.predicted_wait_s) + _move_s(request, prefill, decode, snapshot)
    return local_s < remote_s


def _near(views: list[WorkerView], cost: Callable[[WorkerView], float], near: float) -> list[WorkerView]:
    costs = [cost(view) for view in views]
    best = min(costs)
    most = best + 0.1 * abs(best) + near
    return [view for view, own in zip(views, costs, strict=True) if own <= most]


def _near_best(views: list[WorkerView], cost: Callable[[WorkerView], float], near: float, draw: float) -> WorkerView:
    close = _near(views, cost, near)
    return close[int(draw * len(close))]


def _peer(view: WorkerView) -> Peer:
    return Peer(view.worker, view.address)


def _nobody_able(request: Request, usable: list[WorkerView], wanted: list[WorkerView]) -> SluiceError:
    """Why nobody takes it: a role is missing, or it is larger than every way it could take."""
    prefill = [view for view in wanted if view.role is Role.PREFILL]
    ways = [(view.limits, view.limits) for view in wanted if view.role is Role.MIXED]
    ways += [(one.limits, other.limits) for one in prefill for other in wanted if _are_paired(one, other)]
    return _too_large(request, ways) if ways else _nobody(usable, request.model)


def _nobody(usable: list[WorkerView], model: str) -> SluiceError:
    roles = {view.role for view in usable}
    if Role.PREFILL not in roles:
        missing = "no prefill worker"
    elif Role.DECODE not in roles:
        missing = "no decode worker"
    else:
        missing = "no prefill worker that has reached a decode worker"
    return NoWorkerError(f"{missing} is ready for model {model!r}", retry_after_s=1.0)


def _too_large(request: Request, ways: list[tuple[Limits, Limits]]) -> SluiceError:
    """ways: limits of where it would begin, and of where it would be held to its end."""
    places = max(min(limits.max_running_requests for limits in way) for way in ways)
    if request.num_choices > places:
        return InvalidRequestError(
            f"n: {request.num_choices} choices are to run at once; workers here run {places} sequences", param="n"
        )
    output = f"{request.num_choices} x {request.stop.max_new_tokens} output tokens"
    return ContextLengthError(
        f"{len(request.prompt_ids)} prompt tokens and {output} do not fit the KV pool of any worker: "
        f"the largest has {max(last.num_slots for _, last in ways)} slots",
        param="max_tokens",
    )
