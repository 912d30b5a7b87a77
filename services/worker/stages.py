"""Times the stages of a job's life, for the histograms and for traces. Told by `Jobs`, as things happen."""

import time
from typing import NamedTuple

from services.common import ipc
from services.common.metrics import WorkerMetrics
from services.common.tracing import Exporter, parse_traceparent
from services.router.work import QueuedWork, WorkKind
from services.worker.spans import JobTimes, JobTrace, job_spans


class JobTracer(NamedTuple):
    """Where a worker's spans go, and the role they are named by."""

    exporter: Exporter
    role: str


class Stages:
    """One per worker; knows each job from `queued` to `ended`."""

    def __init__(self, metrics: WorkerMetrics, tracer: JobTracer | None = None) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._jobs: dict[int, JobTimes] = {}
        self._traces: dict[int, JobTrace] = {}
        """Of the jobs that are traced."""

    def queued(self, command: ipc.Admit | ipc.Reserve, work: QueuedWork, traceparent: str) -> None:
        """It waits in the Router."""
        self._jobs[command.job_id] = JobTimes(work, time.monotonic())
        parent = parse_traceparent(traceparent) if self._tracer is not None else None
        if parent is not None and parent.is_sampled:
            self._traces[command.job_id] = JobTrace(parent, command.key)

    def admitted(self, event: ipc.Admitted | ipc.Reserved) -> None:
        """The engine took it, or reserved for it."""
        job, now = self._jobs[event.job_id], time.monotonic()
        job.admitted_s, job.cached_tokens = now, event.cached_tokens
        self._metrics.router.queue.observe(now - job.queued_s)
        if isinstance(event, ipc.Reserved):
            if self._metrics.decode is not None:
                self._metrics.decode.grant.observe(now - job.queued_s)
        elif self._metrics.prefill is not None and job.work.kind is not WorkKind.RESUMED:
            self._metrics.prefill.prompt_tokens.inc(job.work.context_tokens)
            self._metrics.prefill.cached_tokens.inc(event.cached_tokens)

    def joined(self, job_id: int) -> None:
        """Its KV is here in full."""
        job, now = self._jobs[job_id], time.monotonic()
        job.joined_s = now
        if self._metrics.decode is not None:
            self._metrics.decode.join.observe(now - job.admitted_s)

    def output(self, output: ipc.SequenceOutput) -> None:
        """New tokens of one of its sequences."""
        job, now = self._jobs[output.job_id], time.monotonic()
        if not job.first_output_s:
            job.first_output_s = now
            self._first_output(job, now)
        decode = self._metrics.decode
        if decode is None or not job.work.grows:
            return
        before = job.last_output_s.get(output.choice)
        job.last_output_s[output.choice] = now
        if before is not None:
            decode.inter_token.observe((now - before) / len(output.token_ids))
        if output.finish is not None:
            self.finished(output.finish.value)

    def _first_output(self, job: JobTimes, now: float) -> None:
        if self._metrics.prefill is not None and job.work.kind in {WorkKind.PREFILL, WorkKind.LOCAL}:
            self._metrics.prefill.prefill.observe(now - job.admitted_s)
            self._metrics.prefill.first_token.observe(now - job.queued_s)

    def stepped(self, num_decoded: int) -> None:
        """So many tokens were decoded in one step."""
        if self._metrics.decode is not None and num_decoded:
            self._metrics.decode.output_tokens.inc(num_decoded)

    def finished(self, reason: str) -> None:
        """A sequence ended."""
        if self._metrics.decode is not None:
            self._metrics.decode.finished.labels(reason).inc()

    def revoked(self) -> None:
        """A reservation was taken back."""
        if self._metrics.decode is not None:
            self._metrics.decode.revoked.inc()

    def pushed(self, event: ipc.PushDone) -> None:
        """Its KV has left."""
        job = self._jobs[event.job_id]
        job.pushed_s, job.push_took_s = time.monotonic(), event.seconds

    def ended(self, job_id: int) -> None:
        """Nothing is left of it."""
        job, trace = self._jobs.pop(job_id, None), self._traces.pop(job_id, None)
        if job is not None and trace is not None and self._tracer is not None:
            self._tracer.exporter.add(*job_spans(job, trace, self._tracer.role, time.monotonic()))
