"""What each command does, between steps."""

import logging

from services.common.ipc import (
    Abort,
    Admit,
    CheckIntegrity,
    Command,
    ConnectPeer,
    DropPeer,
    Finish,
    Join,
    Place,
    Release,
    Reserve,
    Shutdown,
)
from services.engine.admission import Admission
from services.engine.arrivals import Arrivals
from services.engine.jobs import JobState
from services.engine.notes import Checked
from services.engine.pushes import Pushes
from services.engine.state import EngineState

log = logging.getLogger(__name__)


class WrongRoleError(Exception):
    """The control process sent a command that this engine's role does not have."""


class CommandHandler:
    """Owned by the loop. Commands on jobs that are gone are ignored: their Ended is on its way."""

    def __init__(
        self,
        state: EngineState,
        admission: Admission,
        pushes: Pushes | None,
        arrivals: Arrivals | None,
    ) -> None:
        self._state = state
        self._admission = admission
        self._pushes = pushes
        self._arrivals = arrivals
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
                self._apply_transfer(command)

    def _apply_transfer(self, command: Place | ConnectPeer | DropPeer | Reserve | Join) -> None:
        """Commands that only a prefill engine or only a decode engine has; the wrong one is a broken deployment."""
        match command, self._pushes, self._arrivals:
            case Place(), Pushes() as pushes, _:
                pushes.place(command)
            case ConnectPeer(), Pushes() as pushes, _:
                pushes.connect(command)
            case DropPeer(), Pushes() as pushes, _:
                pushes.drop_peer(command)
            case Reserve(), _, Arrivals() as arrivals:
                arrivals.reserve(command)
            case Join(), _, Arrivals() as arrivals:
                arrivals.join(command)
            case _:
                raise WrongRoleError(f"{type(command).__name__} is not for an engine of this role")

    def _finish(self, command: Finish) -> None:
        job = self._state.jobs.get(command.job_id)
        sequence = None if job is None else job.sequences.get(command.choice)
        if sequence is not None:
            self._state.end_sequence(sequence, command.num_output_tokens)
        self._state.host.drop((command.job_id, command.choice))  # it may have been preempted meanwhile

    def _release(self, command: Release) -> None:
        job = self._state.jobs.get(command.job_id)
        if job is not None and job.state is JobState.HOLDING:
            self._state.end_job(job)

    def _abort(self, command: Abort) -> None:
        job = self._state.jobs.get(command.job_id)
        if job is not None:
            self._state.end_job(job)
        self._state.host.drop_job(command.job_id)

    def _check(self, command: CheckIntegrity) -> None:
        state = self._state
        problems = state.kv.problems(state.holdings()) + state.problems() + state.host.problems()
        state.agreement.tell(Checked(command.token, problems, state.usage(), len(state.jobs)))
