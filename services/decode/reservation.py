"""One reservation on a decode worker."""

import enum
from dataclasses import dataclass

from services.common import ipc
from services.common.messages import WorkerRef
from services.common.peer_messages import Handover
from services.worker.protocol.attempt import Attempt, engine_stop


class State(enum.Enum):
    """See `services.decode.reservations`."""

    ASKED = "asked"
    RESERVED = "reserved"
    JOINING = "joining"
    JOINED = "joined"
    DONE = "done"


NOBODY = WorkerRef("", "")
"""The peer of an attempt that is computed here."""


@dataclass(slots=True, kw_only=True)
class Reservation(Attempt):
    """Changed only by `DecodeReservations`."""

    peer: WorkerRef
    """The prefill worker that asked; NOBODY where it is computed here."""
    job_id: int
    lease_until: float
    state: State = State.ASKED
    local_tokens: int = 0
    """Leading tokens whose KV was here already."""
    handover: Handover | None = None

    @property
    def is_peers(self) -> bool:
        """Whether it still belongs to the prefill worker."""
        return self.state in {State.ASKED, State.RESERVED, State.JOINING}

    def reserve_command(self) -> ipc.Reserve:
        """What the engine is asked for."""
        tokens = ipc.pack_ids([*self.request.prompt_ids, *self.output_ids])
        return ipc.Reserve(self.job_id, self.key, tokens, self.arrival_s, self.request.sampling.grammar)

    def join_command(self, eos_token_ids: tuple[int, ...]) -> ipc.Join:
        """What the engine is told once all KV is announced."""
        assert self.handover is not None
        return ipc.Join(
            job_id=self.job_id,
            first_tokens={first.choice: first.token_id for first in self.handover.first},
            num_prompt_tokens=len(self.request.prompt_ids),
            sampling=self.request.sampling,
            stop=engine_stop(self.request, eos_token_ids),
        )

    def first_outputs(self) -> list[ipc.SequenceOutput]:
        """Token 0 of each choice that goes on, as if the engine had sampled it here (R6)."""
        assert self.handover is not None
        return [
            ipc.SequenceOutput(
                job_id=self.job_id,
                choice=first.choice,
                first_index=len(self.output_ids),
                token_ids=[first.token_id],
                logprobs=None if first.logprob is None else [first.logprob],
            )
            for first in self.handover.first
        ]
