"""A decode worker's core with a session from one prefill worker."""

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import (
    WorkerRef,
)
from services.decode.reservations import DecodeReservations
from tests.unit.protocol.cores import P0, Bench, handover, reserve

K2 = AttemptKey("r", 2)


class DecodeBench(Bench):
    """With a session from p0."""

    def __init__(self, *, with_master: bool = True) -> None:
        super().__init__(DecodeReservations, with_master=with_master)
        self.said += self.core.peer_hello(P0, 1, 0.0)

    def peer(self, message: object, worker: WorkerRef = P0) -> None:
        """A prefill worker says something."""
        self.said += self.core.from_peer(worker, message, self.now)

    def reserved(self, num_choices: int = 1) -> None:
        """Slots are promised, as job 1."""
        self.peer(reserve(num_choices=num_choices))
        self.event(ipc.Reserved(1, 1, 3))

    def joined(self, num_choices: int = 1) -> None:
        """It decodes."""
        self.reserved(num_choices)
        self.peer(handover(num_choices=num_choices))
        self.event(ipc.Joined(1))
