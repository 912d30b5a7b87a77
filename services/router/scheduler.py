"""Whom to let in now: the state of queue and pool in, a plan out. No clock, no sockets, nothing changed.

The rule, in the queue's order: let in while the peak stays below capacity, the sequences below their limit, and the
first chunk fits what is left of the first step's prompt budget. Then:

- An empty pool lets in the first, whatever is predicted: the engine has the last word.
- While a preempted sequence waits, or is proposed and not answered, nothing but preempted sequences is let in (R18).
- One that does not fit may be passed by younger ones, `max_bypasses` of them and for `max_bypass_s`; then nothing
  younger is let in until it is (R20).
- A prompt without a grant beyond the share such prompts may fill waits for one; the plan asks to reserve for it first
  (R4). It is asked for when there is room for it here, and that room is kept: a prompt that held room on a decode
  worker and waited for room here would wait for prompts that wait for that decode worker.
- The running limit and the step budget are no reason to pass: the next step solves them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from services.common.errors import ContextLengthError, OverloadedError, SluiceError
from services.router.peak_memory import Joiners, PeakCurve
from services.router.survival import FloatArray
from services.router.waiting import QueueArrays, Waiting, WaitingQueue
from services.router.work import QueuedWork, RouterConfig, WorkKind


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool as the engine last told, with the proposals it has not answered."""

    curve: PeakCurve
    capacity_slots: int
    """Slots that requests may fill: the pool without what is quarantined or held by nobody the Router knows."""
    num_running: int
    """Sequences let in, proposals included."""
    step_tokens_left: int
    """Prompt tokens that the next steps can still take (see `RouterConfig.lookahead_steps`)."""
    ungranted_slots: int = 0
    """Slots of prompts that were let in and have no grant yet."""
    resuming: bool = False
    """A preempted sequence is proposed and not answered."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. Indices are places in the queue."""

    admit: list[int]
    reserve_first: list[int]
    """Prompts to ask a decode worker for before they are let in."""
    bypassed: dict[int, int]
    """Entries that did not fit -> how many younger ones were let in past them."""


Planner: TypeAlias = Callable[[WaitingQueue, Joiners, PoolView, RouterConfig, float], Plan]
"""`plan`, or another rule to compare it with."""


@dataclass(slots=True)
class _Progress:
    """A plan in the making."""

    curve: PeakCurve
    running_left: int
    step_tokens_left: int
    ungranted_left: int
    passes_left: int
    """How many more may be let in before the least patient of what was skipped has been passed too often."""
    admit: list[int] = field(default_factory=list)
    reserve_first: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


def plan(queue: WaitingQueue, joiners: Joiners, pool: PoolView, config: RouterConfig, now_s: float) -> Plan:
    """Decide admissions. joiners: what waits, in the queue's order, as it would join now."""
    progress = _Progress(
        curve=pool.curve,
        running_left=config.max_running - pool.num_running,
        step_tokens_left=pool.step_tokens_left,
        ungranted_left=int(config.ungranted_share * config.capacity_slots) - pool.ungranted_slots,
        passes_left=len(queue),
    )
    end = queue.num_resumed()
    may_pass = not end and not pool.resuming
    end = len(queue) if may_pass else end
    position = _admit_granted(progress, queue, joiners, pool.capacity_slots, config) if may_pass else 0
    if may_pass:
        joiners = _keep_asked(progress, queue.arrays(), joiners, position)
    while position < end:
        position = _admit_run(progress, queue.arrays(), joiners, slice(position, end), pool.capacity_slots, config)
        if not may_pass or position >= end or not progress.passes_left:
            break
        position += _num_passed(progress, queue, joiners[position:end], position, pool.capacity_slots, config, now_s)
    return _finished(progress)


def _admit_granted(
    progress: _Progress, queue: WaitingQueue, joiners: Joiners, capacity: int, config: RouterConfig
) -> int:
    """Let in what has its grant: the room that others were let in around. Returns how many there are; those that have
    to wait all the same keep their room."""
    num = queue.num_granted()
    if num:
        curve = progress.curve
        _admit_run(progress, queue.arrays(), joiners, slice(0, num), capacity, config)
        progress.curve = curve.joined_by(joiners[:num])
    return num


def _keep_asked(progress: _Progress, arrays: QueueArrays, joiners: Joiners, start: int) -> Joiners:
    """Count what is asked for, from `start` on, as if it were in; returns the joiners, of which it has no more to
    join."""
    asked = arrays.asked.copy()
    asked[:start] = False
    if not asked.any():
        return joiners
    progress.curve = progress.curve.joined_by(joiners[np.flatnonzero(asked)])
    return Joiners(np.where(asked, 0, joiners.held), joiners.left, joiners.growth)


def _admit_run(
    progress: _Progress, arrays: QueueArrays, joiners: Joiners, part: slice, capacity: int, config: RouterConfig
) -> int:
    """Let in as many of this part, in order, as fit every limit. Returns the place of the first that does not."""
    allowed = _num_allowed(progress, arrays, part, config)
    candidates = joiners[part.start : part.start + allowed]
    count = progress.curve.num_that_fit(candidates, capacity)
    if not count and allowed and not len(progress.curve.ends):
        count = 1  # An empty pool: held back by a prediction, it would wait for ever.
    if count:
        taken = slice(part.start, part.start + count)
        progress.admit.extend(range(taken.start, taken.stop))
        progress.running_left -= int(arrays.choices[taken].sum())
        progress.step_tokens_left -= int(np.minimum(arrays.compute_tokens[taken], config.chunk_tokens).sum())
        progress.ungranted_left -= int(arrays.ungranted[taken].sum())
        progress.passes_left -= count
        if taken.stop < part.stop:
            progress.curve = progress.curve.joined_by(candidates[:count])
    return int(part.start + count)


def _num_allowed(progress: _Progress, arrays: QueueArrays, part: slice, config: RouterConfig) -> int:
    """How many of this part pass the limits other than memory; each limit is a running sum."""
    running = np.cumsum(arrays.choices[part])
    first_step = np.cumsum(np.minimum(arrays.compute_tokens[part], config.chunk_tokens))
    ungranted = np.cumsum(arrays.ungranted[part])
    return min(
        progress.passes_left,
        int(np.searchsorted(running, progress.running_left, side="right")),
        int(np.searchsorted(first_step, progress.step_tokens_left, side="right")),
        int(np.searchsorted(ungranted, max(progress.ungranted_left, 0), side="right")),
    )


def _num_passed(
    progress: _Progress,
    queue: WaitingQueue,
    joiners: Joiners,
    start: int,
    capacity: int,
    config: RouterConfig,
    now_s: float,
) -> int:
    """How many entries from `start` on to look past: the first, which was not let in, and those that cannot fit either.

    Where nothing younger may be let in, that is all of them.
    """
    arrays, might_fit = queue.arrays(), progress.curve.might_fit(joiners, capacity)
    for offset in range(len(joiners)):
        position = start + offset
        if offset and might_fit[offset]:
            return offset
        if not _has_turn(progress, arrays, position, config):
            break
        if might_fit[offset] and arrays.ungranted[position] > progress.ungranted_left:
            progress.reserve_first.append(position)
            progress.curve = progress.curve.joined_by(joiners[offset : offset + 1])
            might_fit = progress.curve.might_fit(joiners, capacity)
        else:
            progress.skipped.append(position)
            if not may_be_bypassed(queue[position], config, now_s):
                break
            progress.passes_left = min(progress.passes_left, config.max_bypasses - queue[position].bypassed)
        if len(progress.skipped) + len(progress.reserve_first) >= config.scan_limit:
            break
    return len(joiners)


def _has_turn(progress: _Progress, arrays: QueueArrays, position: int, config: RouterConfig) -> bool:
    """Whether running limit and step budget would take this entry; if not, those behind it wait as well."""
    first_step = min(int(arrays.compute_tokens[position]), config.chunk_tokens)
    return bool(arrays.choices[position] <= progress.running_left) and first_step <= progress.step_tokens_left


def may_be_bypassed(entry: Waiting, config: RouterConfig, now_s: float) -> bool:
    """Whether one that does not fit has patience left."""
    blocked_s = 0.0 if entry.blocked_since_s is None else now_s - entry.blocked_since_s
    return entry.bypassed < config.max_bypasses and blocked_s < config.max_bypass_s


def _finished(progress: _Progress) -> Plan:
    bypassed = {index: sum(1 for admitted in progress.admit if admitted > index) for index in progress.skipped}
    return Plan(progress.admit, progress.reserve_first, bypassed)


def refusal(
    work: QueuedWork, config: RouterConfig, num_waiting: int, predicted_wait_s: float, now_s: float
) -> SluiceError | None:
    """Why new work cannot be queued, or None. A preempted sequence is never refused: its client is being served."""
    if work.num_choices > config.max_running:
        return ContextLengthError(
            f"{work.num_choices} choices are to run at once; a worker runs {config.max_running} sequences", param="n"
        )
    most = config.most_slots(work)
    if most >= config.capacity_slots:
        return ContextLengthError(
            f"prompt of {work.prompt_tokens} tokens and {work.num_choices} x {work.max_new_tokens} output tokens need "
            f"{most} slots; a worker has {config.capacity_slots}",
            param="max_new_tokens",
        )
    if work.kind is WorkKind.RESUMED:
        return None
    if num_waiting >= config.max_waiting:
        return OverloadedError(f"{num_waiting} requests wait already", retry_after_s=retry_after_s(predicted_wait_s))
    budget_s = work.queue_deadline_s - now_s
    if config.shed_confidence * predicted_wait_s > budget_s:
        return OverloadedError(
            f"predicted wait of {predicted_wait_s:.1f} s exceeds the queue budget of {max(budget_s, 0):.1f} s",
            retry_after_s=retry_after_s(predicted_wait_s - max(budget_s, 0)),
        )
    return None


def retry_after_s(wait_s: float) -> float:
    """Whole seconds, as the HTTP header wants them: at least 1, at most a minute."""
    return float(min(max(math.ceil(wait_s), 1), 60))


def hopeless(waits_s: FloatArray, deadline_s: FloatArray, now_s: float, confidence: float) -> list[int]:
    """Places in the queue that would miss their deadline even if they waited only `confidence` of what is predicted."""
    return [int(index) for index in np.flatnonzero(now_s + confidence * waits_s > deadline_s)]
