"""A job's way through Router and engine, with a recorder in the engine's place: commands out, events in by hand."""

from typing import cast

import pytest

from services.common import ipc
from services.common.errors import ContextLengthError
from services.common.ipc import AttemptKey, Command, EngineStop
from services.common.metrics import WorkerMetrics
from services.common.request import FinishReason, SamplingParams
from services.router.work import QueuedWork, RouterConfig, WorkKind
from services.worker.engine_client import EngineClient
from services.worker.jobs import GivenUp, JobEvent, Jobs


class Desk:
    """Jobs with their surroundings recorded. The pool has 1000 slots."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.events: list[JobEvent] = []
        config = RouterConfig(capacity_slots=1000, chunk_tokens=256, step_budget_tokens=256)
        metrics = WorkerMetrics(has_prefill=True, has_decode=True)
        self.now_s = 100.0
        self.jobs = Jobs(cast(EngineClient, self), config, metrics, self.events.append, clock=lambda: self.now_s)

    def send(self, *commands: Command) -> None:
        self.commands.extend(commands)

    def start(
        self, num_tokens: int, kind: WorkKind = WorkKind.LOCAL, deadline_s: float = float("inf"),
        resumes: int | None = None,
    ) -> int:  # fmt: skip
        job_id = self.jobs.new_id()
        key, prompt = AttemptKey("ab" * 16, job_id), ipc.pack_ids([1] * num_tokens)
        admit = ipc.Admit(job_id, key, prompt, SamplingParams(), EngineStop(20), 0.0, resumes=resumes)
        self.jobs.start(QueuedWork(job_id, kind, 0.0, num_tokens, 20, queue_deadline_s=deadline_s), admit)
        self.jobs.router.decide()
        return job_id

    def admitted(self, job_id: int, held: int) -> None:
        self.jobs.dispatch(ipc.Admitted(job_id, 0, held))

    def last_words(self, job_id: int) -> list[JobEvent]:
        return [event for event in self.events if event == ipc.Ended(job_id) or isinstance(event, GivenUp)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_job_is_published_when_the_router_lets_it_in(desk: Desk) -> None:
    job_id = desk.start(100)
    assert [type(command) for command in desk.commands] == [ipc.Admit]
    desk.admitted(job_id, 100)
    assert desk.events == [ipc.Admitted(job_id, 0, 100)]


def test_what_never_fits_is_refused_and_not_known(desk: Desk) -> None:
    with pytest.raises(ContextLengthError):
        desk.start(2000)
    assert len(desk.jobs) == 0


def test_a_waiting_job_ends_at_once_and_the_engine_never_hears_of_it(desk: Desk) -> None:
    first = desk.start(900)
    desk.admitted(first, 900)
    waiting = desk.start(900)
    desk.jobs.end(waiting)
    assert desk.last_words(waiting) == [ipc.Ended(waiting)]
    assert ipc.Abort(waiting) not in desk.commands


def test_an_admitted_job_ends_when_the_engine_says_so(desk: Desk) -> None:
    job_id = desk.start(100)
    desk.admitted(job_id, 100)
    desk.jobs.end(job_id)
    desk.jobs.end(job_id)
    assert desk.commands.count(ipc.Abort(job_id)) == 1
    assert desk.last_words(job_id) == []
    desk.jobs.dispatch(ipc.Ended(job_id))
    desk.jobs.dispatch(ipc.Ended(job_id))
    assert desk.last_words(job_id) == [ipc.Ended(job_id)]
    assert len(desk.jobs) == 0


def test_an_abort_that_crosses_with_deferred_still_ends_the_job_once(desk: Desk) -> None:
    job_id = desk.start(100)
    desk.jobs.end(job_id)
    desk.jobs.dispatch(ipc.Deferred(job_id, 0))
    desk.jobs.dispatch(ipc.Ended(job_id))
    assert desk.last_words(job_id) == [ipc.Ended(job_id)]


def test_a_deferred_job_is_proposed_again(desk: Desk) -> None:
    job_id = desk.start(100)
    desk.jobs.dispatch(ipc.Deferred(job_id, 0))
    desk.jobs.dispatch(ipc.Alive(1, 0.0, ipc.Usage(1000, 1000, 0, 0, 0)))
    desk.jobs.router.decide()
    assert [command.job_id for command in desk.commands if isinstance(command, ipc.Admit)] == [job_id, job_id]


def test_a_job_whose_queue_budget_ran_out_is_given_up(desk: Desk) -> None:
    first = desk.start(900)
    desk.admitted(first, 900)
    late = desk.start(900, deadline_s=desk.now_s + 5.0)
    assert not isinstance(desk.events[-1], GivenUp)
    desk.now_s += 6.0
    desk.jobs.router.decide()
    assert isinstance(desk.events[-1], GivenUp)
    assert desk.events[-1].job_id == late
    assert desk.events[-1].error.retryable
    assert len(desk.jobs) == 1


def test_a_preempted_sequence_is_queued_again_before_anything_else_is_let_in(desk: Desk) -> None:
    job_id = desk.start(100)
    desk.admitted(job_id, 100)
    step = ipc.SequenceOutput(job_id, 0, 0, [7])
    desk.jobs.dispatch(ipc.StepDone(1, [step], ipc.Usage(1000, 900, 100, 0, 0), 0.01, 1, 100, [(job_id, 100)]))
    desk.jobs.dispatch(ipc.Preempted(job_id, 0))
    desk.jobs.dispatch(ipc.Ended(job_id))
    resumed = desk.start(101, WorkKind.RESUMED)
    assert desk.commands[-1] == desk.jobs._jobs[resumed].command
    desk.jobs.router.check_integrity()


@pytest.mark.parametrize("is_proposed", [False, True])
def test_what_host_memory_keeps_goes_when_a_preempted_sequence_will_not_resume(desk: Desk, is_proposed: bool) -> None:
    other = desk.start(300)
    desk.admitted(other, 300)
    job_id = desk.start(300)
    desk.admitted(job_id, 300)
    desk.jobs.dispatch(ipc.Preempted(job_id, 0))
    desk.jobs.dispatch(ipc.Ended(job_id))
    if is_proposed:
        desk.jobs.dispatch(ipc.Ended(other))
    resumed = desk.start(900, WorkKind.RESUMED, resumes=job_id)
    desk.jobs.end(resumed)
    desk.jobs.dispatch(ipc.Deferred(resumed, 0))  # crosses with the Abort, where the engine was asked at all
    assert ipc.Abort(job_id) in desk.commands
    proposed = [command.job_id for command in desk.commands if isinstance(command, ipc.Admit)]
    assert (resumed in proposed) == (ipc.Abort(resumed) in desk.commands) == is_proposed
    assert desk.last_words(resumed) == [ipc.Ended(resumed)]


def test_a_stop_string_tells_the_engine_where_the_sequence_ends(desk: Desk) -> None:
    job_id = desk.start(100)
    desk.admitted(job_id, 100)
    desk.jobs.finish(job_id, 0, 5)
    assert desk.commands[-1] == ipc.Finish(job_id, 0, 5)


def test_events_of_forgotten_jobs_have_no_effect(desk: Desk) -> None:
    for event in (ipc.Joined(9), ipc.Revoked(9), ipc.Preempted(9, 0), ipc.Admitted(9, 0, 1), ipc.Deferred(9, 0)):
        desk.jobs.dispatch(event)
    step = ipc.SequenceOutput(9, 0, 0, [7], None, FinishReason.LENGTH)
    desk.jobs.dispatch(ipc.StepDone(1, [step], ipc.Usage(1000, 1000, 0, 0, 0), 0.01, 1, 0, [(9, 5)]))
    assert desk.events == []
