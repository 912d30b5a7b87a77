"""Prompts that are computed where they will decode: their way from the Router's queue into `Decoding`.

waiting --engine: Admitted--> decoding (`Decoding`)
   '--- refused by the Router, given up, ended by the engine, its master or a drain --> nothing
"""

from collections.abc import Callable
from typing import Generic

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import Failed, FailureCause, Prefilling, Queued, RefusalReason, Refused
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent
from services.worker.protocol.decoding import Decoding
from services.worker.protocol.effects import Effect, EndJob, StartJob
from services.worker.protocol.masters import A, Masters


class Computing(Generic[A]):
    """Attempts that wait to be computed here. Used by the cores of the roles that decode."""

    def __init__(
        self,
        masters: Masters[A],
        decoding: Decoding[A],
        emit: Callable[[Effect], None],
        new_id: Callable[[], int],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._masters = masters
        self._decoding = decoding
        self._emit = emit
        self._new_id = new_id
        self._eos_token_ids = eos_token_ids
        self._by_job: dict[int, A] = {}
        """Those that wait."""
        self._jobs: dict[AttemptKey, int] = {}
        """Their jobs."""

    def __len__(self) -> int:
        return len(self._by_job)

    def submit(self, one: A, now: float) -> None:
        """Queue a new attempt."""
        job_id = self._new_id()
        self._masters.add(one, now)
        self._by_job[job_id], self._jobs[one.key] = one, job_id
        self._masters.tell(one, Queued(one.key))
        admit = one.admit(job_id, self._eos_token_ids)
        self._emit(StartJob(one.work(job_id, WorkKind.LOCAL), admit, one.request.traceparent))

    def takes(self, event: JobEvent) -> bool:
        """Whether the event is about one that waits here; then it has been dealt with."""
        one = self._by_job.get(event.job_id)
        if one is None:
            return False
        if isinstance(event, ipc.Admitted | GivenUp | ipc.Ended):
            del self._by_job[event.job_id], self._jobs[one.key]
        match event:
            case ipc.Admitted(job_id=job_id, cached_tokens=cached):
                self._masters.tell(one, Prefilling(one.key, cached))
                self._decoding.begin(one, job_id, set(one.choices))
            case GivenUp(error=error):
                reason = RefusalReason.QUEUE_FULL if error.retryable else RefusalReason.TOO_LARGE
                self._masters.tell(one, Refused(one.key, reason, error.retry_after_s, error.message))
            case ipc.Ended():
                self._masters.tell(one, Failed(one.key, FailureCause.ENGINE, "the engine ended it before it began"))
        return True

    def end(self, one: A) -> None:
        """Take it out of the queue, if it waits."""
        job_id = self._jobs.pop(one.key, None)
        if job_id is not None:
            del self._by_job[job_id]
            self._emit(EndJob(job_id))

    def drain(self) -> None:
        """Give back what waits."""
        for job_id, one in self._by_job.items():
            self._emit(EndJob(job_id))
            self._masters.tell(one, Refused(one.key, RefusalReason.DRAINING))
        self._by_job.clear()
        self._jobs.clear()
