"""Which tokens of a prompt may be gathered, and behind which step."""

from dataclasses import dataclass

import numpy as np

from services.common.ipc import AttemptKey
from services.engine.batch import Batch, Chunk
from services.engine.decode_group import group_of
from services.engine.jobs import Job, JobState
from services.engine.rows import Rows
from services.engine.written import Part, Written


@dataclass
class Step:
    """A launched one."""

    number: int

    def done(self) -> bool:
        return False


FIRST, SECOND = Step(1), Step(2)


def job_of(num_tokens: int) -> Job:
    tokens = np.arange(num_tokens, dtype=np.int32)
    return Job(1, AttemptKey("0" * 32, 1), 0.0, tokens, num_tokens, JobState.PREFILLING, None, 0, hand_over=True)


def batch_of(step: Step, job: Job, start: int, end: int) -> Batch:
    nothing = np.empty(0, np.int32)
    chunk = Chunk(job, 0, start, end - start)
    nobody = group_of(np.empty(0, np.intp), Rows(1, 1, padding_slot=0), [])
    return Batch(step.number, nothing, nobody, nothing, chunks=[chunk])


def test_nothing_is_read_before_its_step_is_the_next_to_end() -> None:
    job, written = job_of(10), Written()
    assert written.after(job, 0) is None
    written.computing(batch_of(FIRST, job, 0, 6), FIRST)
    assert written.after(job, 0) == Part(6, FIRST)
    assert written.after(job, 6) is None


def test_what_is_left_of_an_earlier_step_does_not_wait_for_a_later_one() -> None:
    job, written = job_of(20), Written()
    written.computing(batch_of(FIRST, job, 0, 6), FIRST)
    written.computing(batch_of(SECOND, job, 6, 12), SECOND)
    assert written.after(job, 3) == Part(6, FIRST)
    assert written.after(job, 6) == Part(12, SECOND)


def test_a_prefix_from_the_cache_waits_for_the_first_step_of_the_prompt() -> None:
    job, written = job_of(20), Written()
    written.computing(batch_of(FIRST, job, 16, 20), FIRST)
    assert written.after(job, 0) == Part(20, FIRST)


def test_once_the_last_step_is_launched_all_that_is_left_waits_for_it() -> None:
    job, written = job_of(12), Written()
    written.computing(batch_of(FIRST, job, 0, 6), FIRST)
    job.state = JobState.HOLDING  # the cache may have given it another prompt's slots, written by the last step
    assert written.after(job, 3) is None
    written.computing(batch_of(SECOND, job, 6, 12), SECOND)
    assert written.after(job, 3) == Part(12, SECOND)


def test_a_step_told_twice_counts_once_and_an_ended_job_is_forgotten() -> None:
    job, written = job_of(12), Written()
    for _ in range(2):
        written.computing(batch_of(FIRST, job, 0, 12), FIRST)
    written.forget(job)
    assert written.after(job, 0) is None
    written.computing(batch_of(FIRST, job, 0, 12), FIRST)
    assert written.after(job, 0) is None
