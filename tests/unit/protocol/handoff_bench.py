"""A prefill worker's core with a session to one decode worker."""

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import (
    WorkerRef,
)
from services.common.peer_messages import (
    Granted,
)
from services.prefill.handoff import PrefillHandoff
from tests.unit.protocol.cores import D0, KEY, Bench, output, submit

K2 = AttemptKey("r", 2)


class PrefillBench(Bench):
    """With a session to d0."""

    def __init__(self) -> None:
        super().__init__(PrefillHandoff)
        self.said += self.core.peer_hello(D0, 1, 0.0)

    def peer(self, message: object, worker: WorkerRef = D0) -> None:
        """A decode worker says something."""
        self.said += self.core.from_peer(worker, message)

    def computing(self, num_choices: int = 1) -> None:
        """The prompt is in the engine, as job 1."""
        self.master(submit(num_choices=num_choices))
        self.event(ipc.Admitted(1, 2, 3))

    def computed(self) -> None:
        """Token 0 is there, room on d0 as well."""
        self.computing()
        self.peer(Granted(KEY, 1))
        self.event(output(1, 0))
