"""Sequences that decode on this worker, whatever way their KV came here.

    decoding --SequenceOutput.finish, or a stop string--> finished
       |  ^--- Admit under a new job ---,
       '--Preempted--> waiting in the Router

Each choice is a sequence of its own (R11): it finishes and is preempted alone.
"""

from collections.abc import Callable
from typing import Generic

from services.common import ipc
from services.common.messages import Failed, FailureCause, Preempted, PromptScored, RefusalReason, Refused
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent, PromptPart
from services.worker.outputs import Taken
from services.worker.protocol.attempt import OpenLog, engine_stop
from services.worker.protocol.effects import Effect, EndJob, FinishSequence, SendToMaster, StartJob
from services.worker.protocol.masters import A, Masters

_LOST = "the engine ended a sequence that had not finished"


class Decoding(Generic[A]):
    """Owns `Attempt.jobs` of the attempts that decode here. Used by the cores of the roles that decode."""

    def __init__(
        self,
        masters: Masters[A],
        emit: Callable[[Effect], None],
        open_log: OpenLog,
        new_id: Callable[[], int],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._masters = masters
        self._emit = emit
        self._open_log = open_log
        self._new_id = new_id
        self._eos_token_ids = eos_token_ids
        self._by_job: dict[int, A] = {}

    def __len__(self) -> int:
        return len(self._by_job)

    def attempt(self, job_id: int) -> A | None:
        """Whose sequences a job holds; None when it is no job of these."""
        return self._by_job.get(job_id)

    def begin(self, attempt: A, job_id: int, choices: set[int]) -> None:
        """These choices decode in this job from now on; their output goes to the master."""
        attempt.jobs[job_id] = set(choices)
        self._by_job[job_id] = attempt
        self._tell_scores(attempt)  # of a prompt of one token no part will come
        for choice in sorted(choices):
            attempt.open_log(choice, self._open_log)
            self._masters.publish(attempt, choice)

    def scored(self, part: PromptPart) -> None:
        """Log-probabilities of prompt tokens; the master is told once it can have all."""
        attempt = self._by_job.get(part.job_id)
        if attempt is None or attempt.scores is None:
            return
        attempt.scores.take(part.logprobs)
        self._tell_scores(attempt)

    def _tell_scores(self, attempt: A) -> None:
        scores = attempt.scores
        if scores is not None and scores.is_complete and PromptScored not in attempt.said:
            self._masters.tell(attempt, PromptScored(attempt.key, scores.whole()))

    def output(self, output: ipc.SequenceOutput) -> None:
        """New tokens of one sequence."""
        attempt = self._by_job.get(output.job_id)
        if attempt is None or output.choice not in attempt.jobs[output.job_id]:
            return
        log = attempt.logs[output.choice]
        taken = log.take(output)
        if taken is None:
            return
        self._masters.grown(attempt, output.choice)
        if log.finish is not None:
            attempt.jobs[output.job_id].discard(output.choice)
            if taken is Taken.CUT:
                self._emit(FinishSequence(output.job_id, output.choice, log.finish.num_output_tokens))

    def preempted(self, event: ipc.Preempted) -> None:
        """A sequence lost its slots: compute it again here, when the Router says so (R18)."""
        attempt = self._by_job.get(event.job_id)
        if attempt is None or event.choice not in attempt.jobs[event.job_id]:
            return
        attempt.jobs[event.job_id].discard(event.choice)
        job_id = self._new_id()
        attempt.jobs[job_id] = {event.choice}
        self._by_job[job_id] = attempt
        self._emit(self._resume_job(attempt, job_id, event))
        self._emit(SendToMaster(attempt.master, Preempted(attempt.key, event.choice)))

    def _resume_job(self, attempt: A, job_id: int, event: ipc.Preempted) -> StartJob:
        request, produced = attempt.request, attempt.produced(event.choice)
        admit = ipc.Admit(
            job_id=job_id,
            key=attempt.key,
            prompt_ids=ipc.pack_ids(request.prompt_ids),
            sampling=attempt.sampling,
            stop=engine_stop(request, self._eos_token_ids),
            arrival=attempt.arrival_s,
            output_ids=ipc.pack_ids(produced),
            choices=(event.choice,),
            resumes=event.job_id,
        )
        work = attempt.work(job_id, WorkKind.RESUMED, produced=len(produced), choices=1)
        return StartJob(work, admit, attempt.request.traceparent)

    def event(self, event: JobEvent) -> None:
        """One event of a job that decodes here; of others there is nothing to do."""
        match event:
            case PromptPart():
                self.scored(event)
            case ipc.SequenceOutput():
                self.output(event)
            case ipc.Preempted():
                self.preempted(event)
            case ipc.GrammarRefused(job_id=job_id, message=text):
                self._invalid(job_id, text)
            case ipc.Ended(job_id=job_id) | GivenUp(job_id=job_id):
                lost = self.ended(job_id)
                if lost is not None:
                    self.stop(lost)
                    self._masters.tell(lost, Failed(lost.key, FailureCause.ENGINE, _LOST))

    def _invalid(self, job_id: int, why: str) -> None:
        one = self._by_job.get(job_id)
        if one is not None:
            self.stop(one)
            self._masters.tell(one, Refused(one.key, RefusalReason.INVALID, message=why))

    def ended(self, job_id: int) -> A | None:
        """The last word on a job. Returns the attempt when sequences were lost with it, which no event announced."""
        attempt = self._by_job.pop(job_id, None)
        if attempt is None:
            return None
        lost = attempt.jobs.pop(job_id)
        return attempt if lost else None

    def stop(self, attempt: A) -> None:
        """End whatever of it decodes or waits to."""
        for job_id in attempt.jobs:
            del self._by_job[job_id]
            self._emit(EndJob(job_id))
        attempt.jobs.clear()
