"""One core, what is said to it, and what it said: for tests of single rules."""

import itertools
from typing import Any, TypeVar

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import LiveAttempt, MasterRef, Peer, Submit, WorkerRef
from services.common.peer_messages import FirstToken, Handover, Reserve
from services.common.request import FinishReason, Request, SamplingParams, StopParams
from services.worker.protocol import effects as fx
from services.worker.protocol.core import ProtocolCore
from tests.unit.protocol.sim.expected import EOS, next_token, open_log

M0 = MasterRef("m", "1")
P0, D0, D1 = WorkerRef("p0", "1"), WorkerRef("d0", "1"), WorkerRef("d1", "1")
AT_D0, AT_D1 = Peer(D0, "d0:1"), Peer(D1, "d1:1")
KEY = AttemptKey("r", 1)
E = TypeVar("E")


def request(num_choices: int = 1, limit: int = 10) -> Request:
    """A prompt of three tokens; the model does not end by itself within the limit."""
    return Request("r", "m", [50, 1, 2], SamplingParams(), StopParams(limit), num_choices=num_choices)


def token(position: int, choice: int = 0) -> int:
    """What the model samples."""
    return next_token([50, 1, 2], choice, position)


class Bench:
    """A core and what it said since the last `take`."""

    def __init__(self, core_type: type[ProtocolCore[Any]], *, with_master: bool = True) -> None:
        ids = itertools.count(1)
        self.core: Any = core_type(open_log, lambda: next(ids), (EOS,))
        self.said: list[fx.Effect] = []
        self.now = 0.0
        if with_master:
            self.hello()

    def hello(self, *live: LiveAttempt, session: int = 1, master: MasterRef = M0) -> None:
        """A master's session begins."""
        self.said += self.core.master_hello(master, session, list(live), self.now)

    def master(self, message: Any) -> None:  # noqa: ANN401
        """The master says something."""
        self.said += self.core.from_master(M0, message, self.now)

    def event(self, event: Any) -> None:  # noqa: ANN401
        """Something happened to a job."""
        self.said += self.core.job_event(event, self.now)

    def pass_time(self, seconds: float) -> None:
        """One second after the other, each with its sweep."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.said += self.core.tick(self.now)

    def to_master(self) -> list[Any]:
        """Events of attempts."""
        return [one.event for one in self.take(fx.SendToMaster)]

    def to_peer(self, worker: WorkerRef, *, but: type[Any] = tuple) -> list[Any]:
        """Messages to one worker."""
        return [
            one.message for one in self.take(fx.SendToPeer) if one.worker == worker and not isinstance(one.message, but)
        ]

    def take(self, kind: type[E]) -> list[E]:
        """Effects of one kind; they are forgotten then."""
        found: list[E] = [one for one in self.said if isinstance(one, kind)]
        self.said = [one for one in self.said if not isinstance(one, kind)]
        return found

    @property
    def is_empty(self) -> bool:
        """Nothing is known of any attempt."""
        return not self.core.num_attempts and not self.core.num_jobs


def submit(key: AttemptKey = KEY, decode: Peer | None = AT_D0, num_choices: int = 1, limit: int = 10) -> Submit:
    """A new attempt."""
    return Submit(key, request(num_choices, limit), tuple(range(num_choices)), [], decode, 0.0)


def reserve(key: AttemptKey = KEY, master: MasterRef = M0, num_choices: int = 1) -> Reserve:
    """A prefill worker asks."""
    return Reserve(key, master, request(num_choices), tuple(range(num_choices)), [], 0.0)


def handover(key: AttemptKey = KEY, num_tokens: int = 3, num_choices: int = 1) -> Handover:
    """Compute is done."""
    return Handover(key, [FirstToken(choice, token(0, choice)) for choice in range(num_choices)], num_tokens, 2)


def output(job_id: int, position: int, *, choice: int = 0, finish: FinishReason | None = None) -> ipc.SequenceOutput:
    """One token of one sequence."""
    return ipc.SequenceOutput(job_id, choice, position, [token(position, choice)], None, finish)
