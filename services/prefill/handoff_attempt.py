"""One attempt on a prefill worker."""

import enum
from dataclasses import dataclass, field

from services.common import ipc
from services.common.messages import Peer
from services.common.peer_messages import FirstToken, Handover, Reserve
from services.worker.protocol.attempt import Attempt


class Compute(enum.Enum):
    """What has become of the prompt; see `services.prefill.handoff`."""

    QUEUED = "queued"
    COMPUTING = "computing"
    COMPUTED = "computed"
    GONE = "gone"


class Placement(enum.Enum):
    """What has become of the decode worker's half."""

    NOT_ASKED = "not asked"
    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class HandoffAttempt(Attempt):
    """Changed only by `PrefillHandoff`."""

    decode: Peer
    job_id: int
    compute: Compute = Compute.QUEUED
    placement: Placement = Placement.NOT_ASKED
    cached_tokens: int = 0
    """Prefix hit here."""
    remote_tokens: int = 0
    """Leading tokens that the decode worker holds already."""
    first: dict[int, FirstToken] = field(default_factory=dict)
    """Token 0 of the choices that go on."""
    peer_absent_since: float | None = None
    peer_misses: int = 0

    @property
    def is_waiting_for_peer(self) -> bool:
        """Whether the decode worker is asked for, or has promised, room."""
        return self.compute is not Compute.GONE and self.placement in {Placement.ASKED, Placement.GRANTED}

    def place_command(self) -> ipc.Place:
        """Where the engine pushes."""
        return ipc.Place(self.job_id, self.decode.worker.worker_id, self.key, self.remote_tokens)

    def reserve(self, now: float) -> Reserve:
        """What the decode worker is asked for."""
        age_s = now - self.arrival_s
        return Reserve(self.key, self.master, self.request, self.choices, self.output_ids, age_s)

    def handover(self) -> Handover:
        """What the decode worker is told once all is computed."""
        return Handover(self.key, list(self.first.values()), self.num_tokens, self.cached_tokens)
