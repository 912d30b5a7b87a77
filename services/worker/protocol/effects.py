"""What a protocol core asks of the edge around it. The edge carries effects out in order, before it hands in more.

Every public method of a core returns a list of these. Identity: a master is named by its `MasterRef`, a peer by its
`WorkerRef`; an effect for one without a session now is dropped by the edge: the protocol resumes by itself (R7).
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import AttemptEvent, MasterRef, Peer, WorkerRef
from services.common.peer_messages import DecodeMessage, PrefillMessage
from services.common.request import Delta, Finish
from services.router.work import QueuedWork
from services.worker.outputs import Taken


class OutputLog(Protocol):
    """One choice's output (`services.worker.outputs.ChoiceOutput`)."""

    @property
    def finish(self) -> Finish | None:
        """How the choice ended, once it has."""
        ...

    @property
    def output_ids(self) -> list[int]:
        """The ids that this worker produced."""
        ...

    def take(self, output: ipc.SequenceOutput) -> Taken | None:
        """Append a step's tokens."""
        ...

    def since(self, index: int) -> Delta | None:
        """All from an output position on."""
        ...


@dataclass(frozen=True, slots=True)
class StartJob:
    """Queue a job in the Router; `command` goes to the engine when it is let in. Where the Router refuses at once, the
    edge calls `job_refused(job_id, error, now)`."""

    work: QueuedWork
    command: ipc.Admit | ipc.Reserve
    traceparent: str = ""
    """The request's."""


@dataclass(frozen=True, slots=True)
class EndJob:
    """End a job in any state, waiting or in the engine. The core has forgotten it already."""

    job_id: int


@dataclass(frozen=True, slots=True)
class JobGranted:
    """Tell the Router that a decode worker promised room for this prompt (R4)."""

    job_id: int


@dataclass(frozen=True, slots=True)
class FinishSequence:
    """A stop string ended a sequence: tell engine and Router (R10)."""

    job_id: int
    choice: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """Publish a command."""

    command: ipc.Place | ipc.Join | ipc.Release


@dataclass(frozen=True, slots=True)
class SendToMaster:
    """Say an event of an attempt."""

    master: MasterRef
    event: AttemptEvent


@dataclass(frozen=True, slots=True)
class Follow:
    """Send a choice's output to its master from an output position on, and all that comes after it."""

    master: MasterRef
    key: AttemptKey
    choice: int
    log: OutputLog
    next_index: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A choice's log has something new for whoever follows it."""

    master: MasterRef
    key: AttemptKey
    choice: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Send nothing more of an attempt."""

    master: MasterRef
    key: AttemptKey
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Say something to the other worker of a pair."""

    worker: WorkerRef
    message: PrefillMessage | DecodeMessage


@dataclass(frozen=True, slots=True)
class WantPeers:
    """All decode workers to keep sessions and transfers to; those not among them are dropped."""

    peers: tuple[Peer, ...]


Effect: TypeAlias = (
    StartJob
    | EndJob
    | JobGranted
    | FinishSequence
    | EngineCommand
    | SendToMaster
    | Follow
    | Grown
    | Forget
    | SendToPeer
    | WantPeers
)
