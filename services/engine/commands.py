"""What each command does, between steps."""

import logging

from services.common.ipc import (
    Abort,
    Admit,
    CheckIntegrity,
    Command,
    Finish,
    Integrity,
    Release,
    Shutdown,
)
from services.engine.admission import Admission
from services.engine.jobs import JobState
from services.engine.state import EngineState

log = logging.getLogger(__name__)


class CommandHandler:
    """Owned by the loop. Commands on jobs that are gone are ignored: their Ended is on its way."""

    def __init__(self, state: EngineState, admission: Admission) -> None:
        self._state = state
        self._admission = admission
        self.shutdown = False

    def apply(self, command: Command) -> None:
        """Carry out one command; its answer is among the state's events."""
        match command:
            case Admit():
                self._admission.admit(command)
            case Finish():
                self._finish(command)
            case Release():
                self._release(command)
            case Abort():
                self._abort(command)
            case CheckIntegrity():
                self._check(command)
            case Shutdown():
                self.shutdown = True
            case _:
                raise NotImplementedError(command)

    def _finish(self, command: Finish) -> None:
        job = self._state.jobs.get(command.job_id)
        sequence = None if job is None else job.sequences.get(command.choice)
        if sequence is not None:
            self._state.end_sequence(sequence, command.num_output_tokens)

    def _release(self, command: Release) -> None:
        job = self._state.jobs.get(command.job_id)
        if job is not None and job.state is JobState.HOLDING:
            self._state.end_job(job)

    def _abort(self, command: Abort) -> None:
        job = self._state.jobs.get(command.job_id)
        if job is not None:
            self._state.end_job(job)

    def _check(self, command: CheckIntegrity) -> None:
        state = self._state
        problems = state.kv.problems(state.holdings()) + state.problems()
        self._state.events.append(Integrity(command.token, problems, state.kv.usage(), len(state.jobs)))
