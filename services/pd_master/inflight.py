"""A request in the master while it runs: its choices, and the attempts made for them."""

import enum
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from services.common.ipc import AttemptKey
from services.common.messages import AttemptDelta, LiveAttempt, Peer, Submit, WorkerRef
from services.common.request import Request
from services.pd_master.delivery import Choice


class Stage(enum.IntEnum):
    """How far an attempt is known to have come."""

    SENT = 0
    QUEUED = 1
    PREFILLING = 2
    PLACED = 3
    JOINED = 4


class Pair(NamedTuple):
    """Where an attempt runs."""

    prefill: WorkerRef
    decode: Peer | None
    """None: the first worker is mixed and does both."""


class Chooser(Protocol):
    """Picks workers for an attempt, from what is known of them now."""

    def pair(self, request: Request, excluded: frozenset[WorkerRef]) -> Pair:
        """Raises NoWorkerError, OverloadedError, ContextLengthError."""
        ...

    def decode(self, request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef]) -> Peer:
        """Another decode worker for a prompt that this prefill worker holds. Raises NoWorkerError."""
        ...


@dataclass(slots=True, eq=False)
class MasterAttempt:
    """One try of a branch on one pair; changed only by `Attempts`."""

    key: AttemptKey
    branch: "Branch"
    pair: Pair
    stage: Stage = Stage.SENT
    joined_choices: frozenset[int] = frozenset()
    """Those that decode on the decode worker; the others ended with their first token, on the prefill worker."""
    is_prefill_done: bool = False
    """The prefill worker is not needed any more: its KV and its output are elsewhere."""
    misses: dict[WorkerRef, int] = field(default_factory=dict)
    """Heartbeats in a row that left it out (R8)."""
    waits_for_redirect: bool = False
    held_back: list[tuple[WorkerRef, AttemptDelta]] = field(default_factory=list)
    """Output that came before the prompt's log-probabilities, which another worker sends."""
    decode: WorkerRef | None = field(init=False)
    """The decode worker, unless it is the same one."""
    workers: tuple[WorkerRef, ...] = field(init=False)
    """All that have to do with it; first the one where it decodes."""

    def __post_init__(self) -> None:
        self.decode = None if self.pair.decode is None else self.pair.decode.worker
        self.workers = (self.pair.prefill,) if self.decode is None else (self.decode, self.pair.prefill)

    def was_inside(self, worker: WorkerRef) -> bool:
        """Whether the worker's engine had it in work: what crashed or stopped it may have been this (R12)."""
        if worker == self.decode:
            return self.stage is Stage.JOINED
        return self.stage >= Stage.PREFILLING and (self.decode is None or self.stage < Stage.JOINED)

    def live(self) -> LiveAttempt:
        """As it is named to a worker."""
        return LiveAttempt(self.key, {choice.index: choice.next_index for choice in self.branch.unfinished()})


@dataclass(slots=True, eq=False)
class Branch:
    """Choices that are tried together: at first all of a request, after a loss each by itself (R11)."""

    inflight: "Inflight"
    wire_id: str
    choices: dict[int, Choice]
    current: MasterAttempt | None = None
    previous: MasterAttempt | None = None
    """Goes on until the current attempt's first token comes from where it decodes (R17)."""
    last_number: int = 0
    num_attempts: int = 0
    excluded: set[WorkerRef] = field(default_factory=set)
    """Workers that refused it, until all have."""
    in_trouble_since: float | None = None
    """Since when no place for it has been found."""

    def unfinished(self) -> list[Choice]:
        """Choices that have not been delivered in full."""
        return [choice for choice in self.choices.values() if not choice.is_finished]

    @property
    def num_delivered(self) -> int:
        """Tokens that the client has."""
        return sum(choice.next_index for choice in self.choices.values())

    def next_key(self) -> AttemptKey:
        """Name the next attempt."""
        self.last_number += 1
        self.num_attempts += 1
        return AttemptKey(self.wire_id, self.last_number)

    def submit(self, attempt: MasterAttempt, now: float) -> Submit:
        """The message that starts an attempt: the request and the output so far, the one recovery operation."""
        unfinished = self.unfinished()
        output_ids = list(unfinished[0].output_ids) if len(unfinished) == 1 else []
        choices = tuple(choice.index for choice in unfinished)
        inflight = self.inflight
        age_s = now - inflight.accepted_s
        score_prompt = inflight.waits_for_scores
        return Submit(attempt.key, inflight.request, choices, output_ids, attempt.pair.decode, age_s, score_prompt)


@dataclass(slots=True, eq=False)
class Inflight:
    """One request of a client."""

    request: Request
    accepted_s: float
    branches: list[Branch] = field(default_factory=list)
    crashes: set[str] = field(default_factory=set)
    """Crashes that took an attempt of it along (R12)."""
    stalls: set[str] = field(default_factory=set)
    """Workers whose engine stood still with an attempt of it inside."""
    has_cached_tokens: bool = False
    waits_for_scores: bool = field(init=False)
    """The prompt's log-probabilities are still to come: nothing is delivered before them."""
    is_over: bool = False

    def __post_init__(self) -> None:
        self.waits_for_scores = self.request.sampling.num_prompt_logprobs is not None

    @property
    def num_engines_down(self) -> int:
        """Engines that crashed or stood still with an attempt of it inside (R12); one that did both counts once."""
        return len(self.crashes | self.stalls)

    @property
    def num_delivered(self) -> int:
        """Tokens that the client has."""
        return sum(branch.num_delivered for branch in self.branches)
