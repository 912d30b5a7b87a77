"""One start of a master: its core, its roster of workers and its clients."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from services.common.errors import SluiceError
from services.common.messages import (
    MasterHello,
    MasterMessage,
    MasterRef,
    Peer,
    Reconcile,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Request
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Deliver, Effect, End, Scored, Send
from services.pd_master.inflight import Pair
from services.pd_master.pending_load import PendingLoad
from services.pd_master.roster import Roster
from services.pd_master.selector import Snapshot, WorkerView, choose, choose_decode
from tests.unit.protocol.sim.expected import Expected, scores
from tests.unit.protocol.sim.net import Session


@dataclass
class Client:
    """Checks what it gets, token by token."""

    request: Request
    expected: dict[int, Expected]
    ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    is_over: bool = False
    is_gone: bool = False
    """It went away by itself, or with its master."""
    error: SluiceError | None = None
    has_scores: bool = False

    @property
    def wants_scores(self) -> bool:
        """Whether it asked for its prompt's log-probabilities."""
        return self.request.sampling.num_prompt_logprobs is not None

    def scored(self, logprobs: PromptLogprobs) -> None:
        """Once, whole, before any output, and only to who asked."""
        assert self.wants_scores
        assert not self.has_scores, "scored twice"
        assert not self.ids, "scored behind output"
        assert logprobs == scores(1, len(self.request.prompt_ids))
        self.has_scores = True

    def take(self, delta: Delta) -> None:
        """No token is wrong, repeated or left out, no text either, and nothing comes after a finish."""
        assert not self.is_over, "output after the end"
        assert self.has_scores or not self.wants_scores, "output before its prompt's scores"
        assert delta.choice not in self.finished, "output after a finish"
        ids = self.ids.setdefault(delta.choice, [])
        assert delta.first_index == len(ids), "a token was repeated or left out"
        ids.extend(delta.token_ids)
        text = self.text[delta.choice] = self.text.get(delta.choice, "") + delta.text
        expected = self.expected[delta.choice]
        assert ids == expected.ids[: len(ids)], "a wrong token"
        assert expected.text.startswith(text), "wrong text"
        if delta.finish is not None:
            assert (ids, text, delta.finish) == (expected.ids, expected.text, expected.finish)
            self.finished.add(delta.choice)

    def end(self, error: SluiceError | None) -> None:
        """Complete, or with an error that says why."""
        assert not self.is_over, "ended twice"
        self.is_over, self.error = True, error
        if error is None:
            assert self.finished == set(range(self.request.num_choices)), "ended with something missing"


@dataclass
class Line:
    """One session, as the roster sees it."""

    master: "Master"
    session: Session
    address: str
    quiet_s: float = 0.0

    def say(self, message: MasterMessage) -> None:
        """Write to the worker."""
        self.session.say(self.master, message)


class Master:
    """A node of the network."""

    def __init__(self, ref: MasterRef) -> None:
        self.ref = ref
        self.pending = PendingLoad()
        self.core = Attempts(self, self.pending)
        self.now = 0.0
        self.roster = Roster(ref, self.pending, lambda: self.now)
        self.roster.handler = self
        self._lines: dict[Session, tuple[Line, WorkerRef]] = {}
        self.last_at: dict[str, WorkerRef] = {}
        """Worker id, which stands for the address -> who was there last."""
        self.links: dict[str, Session] = {}
        self.clients: dict[str, Client] = {}
        self.draw = 0.0

    # ------------------------------------------------------------------------------------------------------ chooser

    def pair(self, request: Request, excluded: frozenset[WorkerRef]) -> Pair:
        """The real selector, on what heartbeats said."""
        return choose(request, excluded, self._snapshot())

    def decode(self, request: Request, prefill: WorkerRef, excluded: frozenset[WorkerRef]) -> Peer:
        """The real selector, on what heartbeats said."""
        return choose_decode(request, prefill, excluded, self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(tuple(self._view(one) for one in self.roster.snapshot().workers), self.draw)

    def _view(self, one: WorkerView) -> WorkerView:
        """Now and then KV is heavy, and decode workers compute prompts themselves."""
        kv_bytes = 10**9 if round(self.draw * 97) % 4 == 1 else 0
        return structs.replace(one, limits=structs.replace(one.limits, kv_bytes_per_token=kv_bytes))

    # ------------------------------------------------------------------------------------------------------ network

    def hello(self, worker_id: str) -> MasterHello:
        """What a new link says first."""
        return self.roster.hello_for(self.last_at.get(worker_id))

    def hear(self, session: Session, message: Any, now: float) -> None:  # noqa: ANN401
        """A message from a worker."""
        self.now = now
        if isinstance(message, WorkerHello):
            line = Line(self, session, message.address)
            self._lines[session] = (line, message.worker)
            self.last_at[message.worker.worker_id] = message.worker
            self.roster.up(line, message)
        elif session in self._lines:
            self.roster.said(self._lines[session][1], message)

    def closed(self, session: Session, now: float) -> None:
        """A session is gone."""
        self.now = now
        if session in self._lines:
            self.roster.down(*self._lines.pop(session))

    def refused(self, worker_id: str) -> None:
        """Nobody listens where this worker was."""
        if worker_id in self.last_at:
            self.roster.refused(self.last_at[worker_id])

    # --------------------------------------------------------------------------------------------------- the roster's

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """As the dispatcher has it."""
        return self.core.reconcile(worker)

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """As the dispatcher has it."""
        self.run(self.core.from_worker(worker, message, self.now))

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        """As the dispatcher has it."""
        self.run(self.core.worker_lost(worker, self.now, crashed=crashed))

    def worker_stalled(self, worker: WorkerRef) -> None:
        """As the dispatcher has it."""
        self.run(self.core.worker_stalled(worker, self.now))

    # ------------------------------------------------------------------------------------------------------ clients

    def submit(self, request: Request, now: float) -> Client:
        """A client comes; it hears of a refusal at once."""
        client = Client(request, {choice: Expected(request, choice) for choice in range(request.num_choices)})
        self.clients[request.request_id] = client
        try:
            self.run(self.core.submit(request, now))
        except SluiceError as error:
            client.end(error)
        return client

    def abort(self, client: Client) -> None:
        """A client goes."""
        client.is_gone = client.is_over = True
        self.run(self.core.abort(client.request.request_id))

    def run(self, effects: list[Effect]) -> None:
        """Carry out, in order."""
        for effect in effects:
            match effect:
                case Send(worker=worker, message=message):
                    self.roster.say(worker, message)
                case Deliver(request_id=request_id, delta=delta):
                    self.clients[request_id].take(delta)
                case Scored(request_id=request_id, logprobs=logprobs):
                    self.clients[request_id].scored(logprobs)
                case End(request_id=request_id, error=error):
                    self.clients[request_id].end(error)

    def tick(self, now: float) -> None:
        """Several times a second."""
        self.now = now
        self.run(self.core.tick(now))
        self.roster.sweep()

    def beat(self) -> None:
        """Once a second."""
        self.roster.reconcile()
