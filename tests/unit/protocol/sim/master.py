"""One start of a master: its core and its clients, with the registry's rules for sessions."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from services.common.errors import SluiceError
from services.common.messages import (
    PROTOCOL,
    Heartbeat,
    Load,
    MasterHello,
    MasterMessage,
    MasterRef,
    Peer,
    Peers,
    Role,
    WorkerHello,
    WorkerRef,
)
from services.common.prompt_logprobs import PromptLogprobs
from services.common.request import Delta, Request
from services.pd_master.attempts import Attempts
from services.pd_master.effects import Deliver, Effect, End, Scored, Send
from services.pd_master.inflight import Pair
from services.pd_master.liveness import Liveness
from services.pd_master.pending_load import PendingLoad
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
        assert logprobs == scores(len(self.request.prompt_ids) - 1)
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
class Known:
    """A worker that said hello."""

    hello: WorkerHello
    session: Session | None
    heartbeat: Heartbeat | None = None


class Master:
    """A node of the network."""

    def __init__(self, ref: MasterRef) -> None:
        self.ref = ref
        self.pending = PendingLoad()
        self.core = Attempts(self, self.pending)
        self.liveness = Liveness()
        self.known: dict[WorkerRef, Known] = {}
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
        return Snapshot(tuple(self._view(one) for one in self.known.values() if one.session is not None), self.draw)

    def _view(self, one: Known) -> WorkerView:
        hello, beat = one.hello, one.heartbeat
        return WorkerView(
            hello.worker,
            hello.role,
            hello.group,
            hello.model,
            hello.address,
            # Now and then KV is heavy, and decode workers compute prompts themselves.
            structs.replace(hello.limits, kv_bytes_per_token=10**9 if round(self.draw * 97) % 4 == 1 else 0),
            Load(),
            beat is not None and beat.ready and not beat.draining,
            {} if beat is None else {pair.worker: pair.gb_per_s for pair in beat.proven},
            self.pending.num_requests(hello.worker),
            self.pending.num_tokens(hello.worker),
        )

    # ------------------------------------------------------------------------------------------------------ network

    def hello(self, worker_id: str) -> MasterHello:
        """What a new link says first."""
        last = self.last_at.get(worker_id)
        live = [] if last is None else self.core.reconcile(last).live
        return MasterHello(PROTOCOL, self.ref, live)

    def hear(self, session: Session, message: Any, now: float) -> None:  # noqa: ANN401
        """A message from a worker."""
        if isinstance(message, WorkerHello):
            self._up(session, message, now)
            return
        for worker, one in list(self.known.items()):
            if one.session is session:
                self.run(self.core.from_worker(worker, message, now))
                if isinstance(message, Heartbeat):
                    one.heartbeat = message
                    if self.liveness.stalled(worker, is_stalled=not message.ready and not message.draining):
                        self.run(self.core.worker_stalled(worker, now))

    def _up(self, session: Session, hello: WorkerHello, now: float) -> None:
        for other in list(self.known):
            if other.worker_id == hello.worker.worker_id and other != hello.worker:
                self._lose(other, now, crashed=True)
        self.last_at[hello.worker.worker_id] = hello.worker
        self.known[hello.worker] = Known(hello, session)
        self.liveness.up(hello.worker)
        self._tell_peers()

    def closed(self, session: Session, now: float) -> None:
        """A session is gone."""
        for worker, one in self.known.items():
            if one.session is session:
                one.session = None
                self.liveness.down(worker, now)

    def _lose(self, worker: WorkerRef, now: float, *, crashed: bool) -> None:
        self.liveness.forget(worker)
        self.known.pop(worker, None)
        self.run(self.core.worker_lost(worker, now, crashed=crashed))
        self._tell_peers()

    def _tell_peers(self) -> None:
        hellos = [one.hello for one in self.known.values()]
        peers = Peers([Peer(hello.worker, hello.address) for hello in hellos if hello.role is Role.DECODE])
        for hello in hellos:
            if hello.role is Role.PREFILL:
                self._say(hello.worker, peers)

    def _say(self, worker: WorkerRef, message: MasterMessage) -> None:
        one = self.known.get(worker)
        if one is not None and one.session is not None:
            one.session.say(self, message)

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
                    self._say(worker, message)
                case Deliver(request_id=request_id, delta=delta):
                    self.clients[request_id].take(delta)
                case Scored(request_id=request_id, logprobs=logprobs):
                    self.clients[request_id].scored(logprobs)
                case End(request_id=request_id, error=error):
                    self.clients[request_id].end(error)

    def tick(self, now: float) -> None:
        """Several times a second."""
        self.run(self.core.tick(now))
        for worker, crashed in self.liveness.tick(now):
            self._lose(worker, now, crashed=crashed)

    def beat(self) -> None:
        """Once a second."""
        for worker in list(self.known):
            self._say(worker, self.core.reconcile(worker))
