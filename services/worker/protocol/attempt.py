"""One attempt on this worker, as far as all roles have it in common."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from services.common.ipc import Admit, AttemptKey, EngineStop, pack_ids
from services.common.messages import AttemptEvent, MasterRef, Submit
from services.common.prompt_logprobs import PromptScores
from services.common.request import Request, SamplingParams
from services.router.work import QueuedWork, WorkKind
from services.worker.protocol.effects import OutputLog

OpenLog = Callable[[Request, int, list[int]], OutputLog]
"""(request, choice, output ids of earlier attempts) -> the log of what this worker adds."""


@dataclass(slots=True)
class Attempt:
    """Changed only by the core that holds it."""

    key: AttemptKey
    master: MasterRef
    request: Request
    choices: tuple[int, ...]
    output_ids: list[int]
    """What earlier attempts produced; only with one choice."""
    arrival_s: float
    """When the request arrived, on this worker's clock (R18)."""
    said: dict[type[AttemptEvent], AttemptEvent] = field(default_factory=dict)
    """What its master was told and must be told again on a new session, in order."""
    logs: dict[int, OutputLog] = field(default_factory=dict)
    """Output of each choice that has any here."""
    published: set[int] = field(default_factory=set)
    """Choices whose output the master may have."""
    jobs: dict[int, set[int]] = field(default_factory=dict)
    """Jobs that decode here -> the choices that go on in them."""
    scores: PromptScores | None = None
    """Of the prompt, as it is computed, where the master wants them."""
    missed: int = 0
    """How often in a row its master did not name it (R8)."""

    @classmethod
    def of_submit(cls, ref: MasterRef, submit: Submit, now: float, **own: Any) -> Self:
        """What a master sent; `own`: the fields of this role."""
        request, num_top = submit.request, submit.request.sampling.num_prompt_logprobs
        scored = None if num_top is None or not submit.score_prompt else PromptScores(len(request.prompt_ids), num_top)
        return cls(
            submit.key,
            ref,
            request,
            submit.choices,
            submit.output_ids,
            arrival_s=now - submit.age_s,
            scores=scored,
            **own,
        )

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV is needed before the next one is sampled."""
        return len(self.request.prompt_ids) + len(self.output_ids)

    @property
    def sampling(self) -> SamplingParams:
        """What a prompt's computation is asked for: its tokens' log-probabilities only while they are not all here."""
        params = self.request.sampling
        if params.num_prompt_logprobs is None or (self.scores is not None and not self.scores.is_complete):
            return params
        return msgspec.structs.replace(params, num_prompt_logprobs=None)

    def admit(self, job_id: int, eos_token_ids: tuple[int, ...], *, hand_over: bool = False) -> Admit:
        """What an engine here computes; `hand_over`: others decode it."""
        return Admit(
            job_id=job_id,
            key=self.key,
            prompt_ids=pack_ids(self.request.prompt_ids),
            sampling=self.sampling,
            stop=engine_stop(self.request, eos_token_ids),
            arrival=self.arrival_s,
            output_ids=pack_ids(self.output_ids),
            choices=self.choices,
            hand_over=hand_over,
        )

    def open_log(self, choice: int, open_log: OpenLog) -> OutputLog:
        """The choice's log, opened when it is first needed: replaying earlier output costs time."""
        log = self.logs.get(choice)
        if log is None:
            log = self.logs[choice] = open_log(self.request, choice, self.output_ids)
        return log

    def produced(self, choice: int) -> list[int]:
        """All output ids of a choice, those of earlier attempts first."""
        log = self.logs.get(choice)
        return [*self.output_ids, *(log.output_ids if log is not None else ())]

    def work(
        self, job_id: int, kind: WorkKind, *, produced: int | None = None, choices: int | None = None
    ) -> QueuedWork:
        """The attempt, or one resumed choice of it, as the Router sees it."""
        request, stop = self.request, self.request.stop
        num_produced = len(self.output_ids) if produced is None else produced
        fixed_length = stop.ignore_eos and not stop.stop_token_ids and not stop.stop_strings
        if kind is WorkKind.RESUMED:
            budget_s = math.inf  # its client is being served: nothing but its end may take it out of the queue
        else:
            budget_s = request.deadline_s if num_produced else min(request.queue_budget_s, request.deadline_s)
        return QueuedWork(
            key=job_id,
            kind=kind,
            arrival_s=self.arrival_s,
            prompt_tokens=len(request.prompt_ids),
            max_new_tokens=stop.max_new_tokens,
            produced_tokens=num_produced,
            min_new_tokens=stop.max_new_tokens if fixed_length else stop.min_new_tokens,
            num_choices=len(self.choices) if choices is None else choices,
            priority=request.priority,
            evidence_key=request.caller,
            queue_deadline_s=self.arrival_s + budget_s,
        )


def engine_stop(request: Request, eos_token_ids: tuple[int, ...]) -> EngineStop:
    """The part of a request's stop conditions that the engine applies (R10)."""
    stop = request.stop
    own = () if stop.ignore_eos else eos_token_ids
    return EngineStop(stop.max_new_tokens, stop.min_new_tokens, tuple(dict.fromkeys((*own, *stop.stop_token_ids))))
