"""The protocol of a `mixed` worker: both halves of a request in one pool, no transfer.

              Submit             engine: Admitted            all choices finished
    (nothing) -----> QUEUED ----------------------> RUNNING ---------------------> DONE
               waits in the Router     computes and decodes, is preempted,     output is kept for
                                       resumes (`decoding`)                    its master
    Abort, not named by its master, master silent: from any state back to nothing, with a tombstone.

Pure: messages, events and `now` in, effects out (`effects`). The caller is the mixed service, in the control process,
on its event loop.
"""

from collections.abc import Callable
from dataclasses import dataclass

from services.common import ipc
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    MasterMessage,
    MasterRef,
    Prefilling,
    Queued,
    Reconcile,
    RefusalReason,
    Refused,
    Submit,
)
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent, PromptPart
from services.worker.protocol.attempt import Attempt, OpenLog, engine_stop, wanted_scores
from services.worker.protocol.core import DEFAULT_TIMES, ProtocolCore
from services.worker.protocol.decoding import Decoding
from services.worker.protocol.effects import Effect, EndJob, SendToMaster, StartJob
from services.worker.protocol.times import Times


@dataclass(slots=True, kw_only=True)
class LocalAttempt(Attempt):
    """Changed only by `LocalAttempts`."""

    job_id: int


class LocalAttempts(ProtocolCore[LocalAttempt]):
    """All attempts of one mixed worker."""

    def __init__(
        self, open_log: OpenLog, new_id: Callable[[], int], eos_token_ids: tuple[int, ...], times: Times = DEFAULT_TIMES
    ) -> None:
        super().__init__(open_log, new_id, eos_token_ids, times)
        self._decoding = Decoding(self._masters, self._emit, open_log, new_id, eos_token_ids)
        self._queued: dict[int, LocalAttempt] = {}
        """By job."""

    @property
    def num_jobs(self) -> int:
        """Jobs that Router or engine have of them."""
        return len(self._queued) + len(self._decoding)

    def from_master(self, ref: MasterRef, message: MasterMessage, now: float) -> list[Effect]:
        """Anything but a hello."""
        match message:
            case Submit():
                self._submit(ref, message, now)
            case Abort(keys=keys):
                self._masters.abort(keys, now)
            case Reconcile(live=live):
                self._masters.reconcile(ref, live, now)
        return self._take()

    def _submit(self, ref: MasterRef, submit: Submit, now: float) -> None:
        if self._masters.find(submit.key) is not None:
            return
        if self._masters.is_stale(submit.key):
            self._emit(SendToMaster(ref, Refused(submit.key, RefusalReason.STALE)))
        elif self.draining:
            self._emit(SendToMaster(ref, Refused(submit.key, RefusalReason.DRAINING)))
        else:
            self._queue(ref, submit, now)

    def _queue(self, ref: MasterRef, submit: Submit, now: float) -> None:
        one = LocalAttempt(
            submit.key,
            ref,
            submit.request,
            submit.choices,
            submit.output_ids,
            arrival_s=now - submit.age_s,
            scores=wanted_scores(submit),
            job_id=self._new_id(),
        )
        self._masters.add(one, now)
        self._queued[one.job_id] = one
        self._masters.tell(one, Queued(one.key))
        self._emit(StartJob(one.work(one.job_id, WorkKind.LOCAL), self._admit(one), one.request.traceparent))

    def _admit(self, one: LocalAttempt) -> ipc.Admit:
        request = one.request
        return ipc.Admit(
            job_id=one.job_id,
            key=one.key,
            prompt_ids=ipc.pack_ids(request.prompt_ids),
            sampling=one.sampling,
            stop=engine_stop(request, self._eos_token_ids),
            arrival=one.arrival_s,
            output_ids=ipc.pack_ids(one.output_ids),
            choices=one.choices,
        )

    def job_event(self, event: JobEvent, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """One event of the engine or the Router, in their order. Those of forgotten jobs have no effect."""
        queued = self._queued.get(event.job_id)
        if queued is not None:
            self._queued_event(queued, event)
        else:
            self._decoding_event(event)
        return self._take()

    def _queued_event(self, one: LocalAttempt, event: JobEvent) -> None:
        match event:
            case ipc.Admitted(cached_tokens=cached):
                del self._queued[one.job_id]
                self._masters.tell(one, Prefilling(one.key, cached))
                self._decoding.begin(one, one.job_id, set(one.choices))
            case GivenUp(error=error):
                del self._queued[one.job_id]
                reason = RefusalReason.QUEUE_FULL if error.retryable else RefusalReason.TOO_LARGE
                self._masters.tell(one, Refused(one.key, reason, error.retry_after_s, error.message))
            case ipc.Ended():
                del self._queued[one.job_id]
                self._fail(one)

    def _decoding_event(self, event: JobEvent) -> None:
        match event:
            case PromptPart():
                self._decoding.scored(event)
            case ipc.SequenceOutput():
                self._decoding.output(event)
            case ipc.Preempted():
                self._decoding.preempted(event)
            case ipc.GrammarRefused(job_id=job_id, message=text):
                self._invalid(job_id, text)
            case ipc.Ended(job_id=job_id) | GivenUp(job_id=job_id):
                lost = self._decoding.ended(job_id)
                if lost is not None:
                    self._fail(lost)

    def _invalid(self, job_id: int, why: str) -> None:
        one = self._decoding.attempt(job_id)
        if one is not None:
            self._decoding.stop(one)
            self._masters.tell(one, Refused(one.key, RefusalReason.INVALID, message=why))

    def _fail(self, one: LocalAttempt) -> None:
        self._decoding.stop(one)
        self._masters.tell(
            one, Failed(one.key, FailureCause.ENGINE, "the engine ended a sequence that had not finished")
        )

    def tick(self, now: float) -> list[Effect]:
        """Sweep: silent masters and tombstones. Each second (R8)."""
        self._masters.tick(now)
        return self._take()

    def drain(self, now: float) -> list[Effect]:  # noqa: ARG002 - the cores are alike
        """Take nothing new, and give back what waits; what runs goes on (R17)."""
        self.draining = True
        for one in list(self._queued.values()):
            del self._queued[one.job_id]
            self._emit(EndJob(one.job_id))
            self._masters.tell(one, Refused(one.key, RefusalReason.DRAINING))
        return self._take()

    def _end_for_master(self, one: LocalAttempt, now: float) -> None:
        """The one way out: whatever is held is given back."""
        if self._queued.pop(one.job_id, None) is not None:
            self._emit(EndJob(one.job_id))
        self._decoding.stop(one)
        self._masters.remove(one, now)
