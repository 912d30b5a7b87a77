"""Work on its way through Router and engine: the one place where the two meet (R19).

A *job* is what the engine calls so. Here it is

    start --> waiting --proposed--> in the engine --Ended--> gone
                 |  ^-----Deferred-----'
                 '-- given up by the Router, or `end` before it was proposed --> gone

`Jobs` gives it an id, queues it in the Router, publishes its command when the Router says so, tells the Router what the
engine answers, and hands the owner what concerns the job. A job's last event is always Ended or GivenUp, exactly once.
"""

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from services.common import ipc
from services.common.errors import SluiceError
from services.common.metrics import WorkerMetrics
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import FinishReason
from services.router import events as told
from services.router.router import Outlets, Router
from services.router.work import QueuedWork, RouterConfig
from services.worker.engine_client import EngineClient
from services.worker.stages import JobTracer, Stages

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The Router let it wait for as long as it may; the engine never heard of it."""

    job_id: int
    error: SluiceError


@dataclass(frozen=True, slots=True)
class ReserveFirst:
    """A prompt that may not be computed before a decode worker granted room for it (R4)."""

    job_id: int


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Log-probabilities of some of a prompt's tokens; those of all come before the job's first output."""

    job_id: int
    logprobs: PromptLogprobs


JobEvent: TypeAlias = (
    ipc.Admitted
    | ipc.Reserved
    | ipc.SequenceOutput
    | PromptPart
    | ipc.GrammarRefused
    | ipc.Joined
    | ipc.Preempted
    | ipc.Revoked
    | ipc.PushDone
    | ipc.TransferFailed
    | ipc.Ended
    | GivenUp
    | ReserveFirst
)


@dataclass(slots=True)
class _Job:
    work: QueuedWork
    command: ipc.Admit | ipc.Reserve
    started: bool = False
    """The Router knows that it decodes."""
    ending: bool = False


class Jobs:
    """Used by the prefill and decode services; owns the Router. Everything runs on the control process's event loop."""

    def __init__(
        self,
        engine: EngineClient,
        config: RouterConfig,
        metrics: WorkerMetrics,
        on_event: Callable[[JobEvent], None],
        tracer: JobTracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._stages = Stages(metrics, tracer)
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self.router = Router(config, Outlets(self._propose, self._give_up, self._reserve_first), clock)

    def __len__(self) -> int:
        return len(self._jobs)

    def new_id(self) -> int:
        """An id that was never used in this engine's life."""
        return next(self._ids)

    def start(self, work: QueuedWork, command: ipc.Admit | ipc.Reserve, traceparent: str = "") -> None:
        """Queue a job; `work.key` is its id. Raises ContextLengthError or OverloadedError and then does not know it."""
        self.router.enqueue(work)
        self._jobs[command.job_id] = _Job(work, command)
        self._stages.queued(command, work, traceparent)

    def end(self, job_id: int) -> None:
        """End a job in any state; Ended follows, at once if the engine never heard of it. Unknown ids are ignored."""
        job = self._jobs.get(job_id)
        if job is None or job.ending:
            return
        job.ending = True
        if self.router.cancel(job_id):
            self._will_not_resume(job)
            self._ended(job_id)
        else:
            self._engine.send(ipc.Abort(job_id))

    def granted(self, job_id: int) -> None:
        """A decode worker promised room for this prompt."""
        self.router.tell(told.Granted(job_id))

    def finish(self, job_id: int, choice: int, num_output_tokens: int) -> None:
        """A stop string ended a sequence: the engine drops what lies beyond (R10)."""
        self._engine.send(ipc.Finish(job_id, choice, num_output_tokens))
        self._stages.finished(FinishReason.STOP.value)
        self.router.tell(told.Finished(job_id, choice, num_output_tokens, natural=True))

    # ---------------------------------------------------------------------------------------------- from the Router

    def _propose(self, work: QueuedWork) -> None:
        self._engine.send(self._jobs[_job_id(work)].command)

    def _give_up(self, work: QueuedWork, error: SluiceError) -> None:
        job_id = _job_id(work)
        self._will_not_resume(self._jobs[job_id])
        self._forget(job_id)
        self._metrics.router.refused.labels("queue_budget").inc()
        self._on_event(GivenUp(job_id, error))

    def _will_not_resume(self, job: _Job) -> None:
        """A job that the engine never let in: what it keeps of the one that this would have resumed is of no use."""
        if isinstance(job.command, ipc.Admit) and job.command.resumes is not None:
            self._engine.send(ipc.Abort(job.command.resumes))

    def _reserve_first(self, work: QueuedWork) -> None:
        self._on_event(ReserveFirst(_job_id(work)))

    # ---------------------------------------------------------------------------------------------- from the engine

    def dispatch(self, event: ipc.Event) -> None:
        """Take one event of the engine, in its order; events that concern no job are for others."""
        match event:
            case ipc.StepDone():
                self._stepped(event)
            case ipc.Alive(usage=usage, busy_s=busy_s) if busy_s == 0:
                self.router.tell(told.Idle(usage.held_slots + usage.reserved_slots))
            case ipc.Admitted() | ipc.Reserved():
                self._admitted(event)
            case ipc.Deferred(job_id=job_id):
                self._deferred(job_id)
            case ipc.Ended(job_id=job_id):
                self._ended(job_id)
            case (
                ipc.GrammarRefused()
                | ipc.Joined()
                | ipc.Preempted()
                | ipc.Revoked()
                | ipc.PushDone()
                | ipc.TransferFailed()
            ):
                self._about_job(event)

    def _about_job(
        self,
        event: ipc.GrammarRefused | ipc.Joined | ipc.Preempted | ipc.Revoked | ipc.PushDone | ipc.TransferFailed,
    ) -> None:
        job = self._jobs.get(event.job_id)
        if job is None:
            return
        match event:
            case ipc.Joined(job_id=job_id):
                self._stages.joined(job_id)
                self._decodes(job)
            case ipc.Preempted(job_id=job_id, choice=choice):
                self._metrics.engine.preemptions.inc()
                self.router.tell(told.Preempted(job_id, choice))
            case ipc.Revoked():
                self._stages.revoked()
            case ipc.PushDone():
                self._stages.pushed(event)
        self._on_event(event)

    def _admitted(self, event: ipc.Admitted | ipc.Reserved) -> None:
        job = self._jobs.get(event.job_id)
        if job is None:
            return
        self.router.tell(told.Admitted(event.job_id, event.held_slots, event.cached_tokens))
        self._stages.admitted(event)
        self._on_event(event)

    def _deferred(self, job_id: int) -> None:
        job = self._jobs.get(job_id)
        if job is not None:
            self._metrics.engine.deferred.inc()
            self.router.tell(told.Deferred(job_id))
            if job.ending and self.router.cancel(job_id):  # the Abort crossed with this: the engine knows no such job
                self._will_not_resume(job)
                self._ended(job_id)

    def _ended(self, job_id: int) -> None:
        if self._forget(job_id):
            self.router.tell(told.Gone(job_id))
            self._on_event(ipc.Ended(job_id))

    def _forget(self, job_id: int) -> bool:
        self._stages.ended(job_id)
        return self._jobs.pop(job_id, None) is not None

    def _stepped(self, step: ipc.StepDone) -> None:
        computed = []
        for job_id, num_computed in step.prefilling:
            job = self._jobs.get(job_id)
            if job is not None:
                computed.append((job_id, max(job.work.context_tokens - num_computed, 0)))
        held = step.usage.held_slots + step.usage.reserved_slots
        self.router.tell(
            told.Stepped(step.step_s, step.num_decode_rows, step.num_prefill_tokens, held, tuple(computed))
        )
        for job_id, logprobs in step.prompt_logprobs:
            if job_id in self._jobs:
                self._on_event(PromptPart(job_id, logprobs))
        for output in step.outputs:
            self._output(output)
        self._stages.stepped(step.num_decode_rows)

    def _output(self, output: ipc.SequenceOutput) -> None:
        job = self._jobs.get(output.job_id)
        if job is None:
            return
        self._stages.output(output)
        if job.work.grows:
            self._decodes(job)
        self._on_event(output)
        if output.finish is not None and job.work.grows:
            end = output.first_index + len(output.token_ids)
            natural = output.finish is FinishReason.STOP
            self.router.tell(told.Finished(output.job_id, output.choice, end, natural))

    def _decodes(self, job: _Job) -> None:
        if not job.started:
            job.started = True
            self.router.tell(told.Started(job.work.key))


def _job_id(work: QueuedWork) -> int:
    assert isinstance(work.key, int)
    return work.key
