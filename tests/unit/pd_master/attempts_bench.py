"""The master's core with one request in it, and all it said."""

from typing import TypeVar

from services.common.errors import NoWorkerError, SluiceError
from services.common.ipc import AttemptKey
from services.common.messages import (
    AttemptDelta,
    AttemptEvent,
    Deltas,
    Heartbeat,
    Joined,
    Load,
    Peer,
    Placed,
    Prefilling,
    Queued,
    WorkerRef,
)
from services.common.request import Delta, Finish, FinishReason, Request, SamplingParams, StopParams
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Deliver, Effect, End, Send
from services.pd_master.inflight import Pair
from services.pd_master.pending_load import PendingLoad

P0, P1, D0, D1 = (WorkerRef(name, "1") for name in ("p0", "p1", "d0", "d1"))


K1, K2 = AttemptKey("r", 1), AttemptKey("r", 2)


M = TypeVar("M")


SUBMIT_ORDER = ((P0, D0), (P1, D1), (P0, D1), (P1, D0))


class InOrder:
    """The first pair of a fixed order that takes work and is not excluded."""

    def __init__(self) -> None:
        self.nobody = False
        self.closed: set[WorkerRef] = set()
        """They take no work now, as a stalled worker does not."""
        self.num_asked = 0

    def pair(self, request: Request, excluded: frozenset[WorkerRef]) -> Pair:
        self.num_asked += 1
        for prefill, decode in SUBMIT_ORDER:
            if not self.nobody and not (excluded | self.closed) & {prefill, decode}:
                return Pair(prefill, Peer(decode, "d:1"))
        raise NoWorkerError(f"nobody for {request.model}")

    def decode(self, request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef]) -> Peer:
        for decode in (D0, D1):
            if not self.nobody and decode not in excluded | self.closed:
                return Peer(decode, "d:1")
        raise NoWorkerError(f"no decode worker for {request.model} on {prefill}")


class Bench:
    """A core with one request in it, and all it said."""

    def __init__(
        self, num_choices: int = 1, queue_budget_s: float = 60.0, deadline_s: float = 600.0,
        sampling: SamplingParams = SamplingParams(),  # noqa: B008 - frozen
    ) -> None:  # fmt: skip
        self.chooser = InOrder()
        self.pending = PendingLoad()
        self.core = Attempts(self.chooser, self.pending)
        self.said: list[Effect] = []
        stop = StopParams(10)
        self.request = Request(
            "r",
            "m",
            [1, 2],
            sampling,
            stop,
            num_choices=num_choices,
            queue_budget_s=queue_budget_s,
            deadline_s=deadline_s,
        )
        self.said += self.core.submit(self.request, 0.0)

    def heard(self, worker: WorkerRef, *events: AttemptEvent, now: float = 1.0) -> None:
        """Events of an attempt."""
        for event in events:
            self.said += self.core.from_worker(worker, event, now)

    def stall(self, worker: WorkerRef, now: float = 6.0) -> None:
        """Its engine stands still, as it says each second."""
        self.chooser.closed.add(worker)
        self.said += self.core.worker_stalled(worker, now)

    def output(self, worker: WorkerRef, key: AttemptKey, delta: Delta, now: float = 1.0) -> None:
        """New tokens."""
        self.said += self.core.from_worker(worker, Deltas([AttemptDelta(key, delta)]), now)

    def beat(self, worker: WorkerRef, *held: AttemptKey, drain_left_s: float | None = None) -> None:
        """A heartbeat."""
        draining = drain_left_s is not None
        beat = Heartbeat(Load(), 0.0, True, draining, [], list(held), drain_left_s or 0.0)
        self.heard_beat(worker, beat)

    def heard_beat(self, worker: WorkerRef, beat: Heartbeat) -> None:
        """A heartbeat as it is."""
        self.said += self.core.from_worker(worker, beat, 1.0)

    def decoding(self, key: AttemptKey = K1, pair: tuple[WorkerRef, WorkerRef] = (P0, D0)) -> None:
        """The attempt goes all the way."""
        prefill, decode = pair
        choices = tuple(range(self.request.num_choices))
        self.heard(prefill, Queued(key), Prefilling(key, 1), Placed(key, decode))
        self.heard(decode, Joined(key, choices, 1))

    def take(self, kind: type[M], worker: WorkerRef | None = None) -> list[M]:
        """What was said of one kind since the last call of any kind, to one worker or to anybody."""
        said = [one for one in self.said if isinstance(one, Send) and worker in {None, one.worker}]
        found: list[M] = [one.message for one in said if isinstance(one.message, kind)]
        self.said = [one for one in self.said if not (isinstance(one, Send) and isinstance(one.message, kind))]
        return found

    @property
    def delivered(self) -> list[int]:
        """Tokens the client got."""
        return [token for one in self.said if isinstance(one, Deliver) for token in one.delta.token_ids]

    @property
    def end(self) -> End | None:
        """How the request ended."""
        return next((one for one in self.said if isinstance(one, End)), None)

    def failed_with(self, kind: type[SluiceError]) -> bool:
        """Whether it ended with such an error, and nothing of it is left."""
        return self.end is not None and isinstance(self.end.error, kind) and not self.core.num_attempts


def tokens(first: int, count: int, *, finish: bool = False, choice: int = 0) -> Delta:
    """Tokens [first, first + count) of one fixed output."""
    ids = list(range(first, first + count))
    end = Finish(FinishReason.LENGTH, first + count) if finish else None
    return Delta(choice, first, ids, "x" * count, None, end, (1,) * count)
