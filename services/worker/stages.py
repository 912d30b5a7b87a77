"""Times the stages of a job's life for the histograms. Told by `Jobs`, as things happen."""

import time
from dataclasses import dataclass, field

from services.common import ipc
from services.common.metrics import WorkerMetrics
from services.router.work import QueuedWork, WorkKind


@dataclass(slots=True)
class _Times:
    work: QueuedWork
    queued_s: float
    admitted_s: float = 0.0
    has_output: bool = False
    last_output_s: dict[int, float] = field(default_factory=dict)
    """By choice, for those that decode here."""


class Stages:
    """One per worker; knows each job from `queued` to `ended`."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._jobs: dict[int, _Times] = {}

    def queued(self, job_id: int, work: QueuedWork) -> None:
        """It waits in the Router."""
        self._jobs[job_id] = _Times(work, time.monotonic())

    def admitted(self, event: ipc.Admitted | ipc.Reserved) -> None:
        """The engine took it, or reserved for it."""
        job, now = self._jobs[event.job_id], time.monotonic()
        job.admitted_s = now
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
        if self._metrics.decode is not None:
            self._metrics.decode.join.observe(now - job.admitted_s)

    def output(self, output: ipc.SequenceOutput) -> None:
        """New tokens of one of its sequences."""
        job, now = self._jobs[output.job_id], time.monotonic()
        if not job.has_output:
            job.has_output = True
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

    def _first_output(self, job: _Times, now: float) -> None:
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

    def ended(self, job_id: int) -> None:
        """Nothing is left of it."""
        self._jobs.pop(job_id, None)
