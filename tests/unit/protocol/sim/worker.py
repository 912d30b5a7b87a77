"""One start of a worker: its core, its engine, and the edge between them as the services have it."""

from typing import Any, Protocol

from services.common import ipc
from services.common import peer_messages as peer
from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Abort,
    AttemptDelta,
    Deltas,
    Heartbeat,
    Limits,
    Load,
    MasterHello,
    MasterRef,
    Peer,
    ProvenPair,
    Role,
    WorkerHello,
    WorkerRef,
)
from services.common.request import Request
from services.decode.reservations import DecodeReservations
from services.prefill.handoff import PrefillHandoff
from services.router.work import WorkKind
from services.worker.jobs import ReserveFirst
from services.worker.protocol import effects as fx
from services.worker.protocol.local import LocalAttempts
from services.worker.protocol.times import Times
from tests.unit.protocol.sim.engine import Engine
from tests.unit.protocol.sim.expected import EOS, open_log
from tests.unit.protocol.sim.net import Session

CORES = {Role.PREFILL: PrefillHandoff, Role.DECODE: DecodeReservations, Role.MIXED: LocalAttempts}
LIMITS = Limits(100_000, 64, 100_000, 300, (EOS,), 64)


class Book(Protocol):
    """Where the engine's request for a job is found."""

    def request(self, request_id: str) -> Request:
        """By id, with or without a choice behind it."""
        ...


class Worker:
    """A node of the network."""

    def __init__(self, worker: WorkerRef, role: Role, book: Book) -> None:
        self.ref = worker
        self.role = role
        self.engine = Engine()
        self.draining = False
        self.is_stalled = False
        """Its engine stands still; the control process goes on."""
        self._book = book
        self._last_job = 0
        self.core: Any = CORES[role](open_log, self._new_id, (EOS,))
        self.masters: dict[MasterRef, Session] = {}
        self.peers: dict[WorkerRef, Session] = {}
        self.wanted: tuple[Peer, ...] = ()
        self._cursors: dict[tuple[MasterRef, AttemptKey, int], tuple[fx.OutputLog, int]] = {}
        self._grown: dict[tuple[MasterRef, AttemptKey, int], None] = {}
        self._ended: dict[str, tuple[int, float]] = {}
        """Request id -> the highest attempt that must not start any more, and since when."""

    def _new_id(self) -> int:
        self._last_job += 1
        return self._last_job

    # ---------------------------------------------------------------------------------------------------- network

    def hear(self, session: Session, message: Any, now: float) -> None:  # noqa: ANN401
        """A message from a master or from the other worker of a pair."""
        self._note_ends(message, now)
        match message:
            case MasterHello(master=master, live=live):
                self.masters[master] = session
                session.say(self, self._hello())
                session.say(self, self._heartbeat(master))
                self.run(self.core.master_hello(master, session.number, live, now), now)
            case peer.PrefillHello(worker=worker):
                self.peers[worker] = session
                session.say(self, peer.DecodeHello(PROTOCOL, self.ref, "g", "host", (1,)))
                self.run(self.core.peer_hello(worker, session.number, now), now)
                self._check_peers(worker)
            case peer.DecodeHello(worker=worker):
                self.peers[worker] = session
                self.run(self.core.peer_hello(worker, session.number, now), now)
            case _:
                self._said(session, message, now)

    def _said(self, session: Session, message: Any, now: float) -> None:  # noqa: ANN401
        for master, current in list(self.masters.items()):
            if current is session:
                self.run(self.core.from_master(master, message, now), now)
        for worker, current in list(self.peers.items()):
            if current is session and self.role is Role.PREFILL:
                self.run(self.core.from_peer(worker, message), now)
            elif current is session:
                self.run(self.core.from_peer(worker, message, now), now)

    def closed(self, session: Session, now: float) -> None:
        """A session is gone."""
        for master, current in list(self.masters.items()):
            if current is session:
                del self.masters[master]
                self.run(self.core.master_closed(master, session.number, now), now)
        for worker, current in list(self.peers.items()):
            if current is session:
                del self.peers[worker]
                self.run(self.core.peer_closed(worker, session.number), now)

    def _hello(self) -> WorkerHello:
        return WorkerHello(PROTOCOL, self.ref, self.role, "g", "m", f"at-{self.ref.worker_id}", LIMITS)

    def _heartbeat(self, master: MasterRef) -> Heartbeat:
        proven = [ProvenPair(worker, "sim", 1.0) for worker in self.peers] if self.role is Role.PREFILL else []
        left_s = 5.0 if self.draining else 0.0
        return Heartbeat(Load(), 0.0, not self.is_stalled, self.draining, proven, self.core.held(master), left_s)

    def cut(self, session: Session) -> None:
        """Write what has grown since the last frame, as a stream does when it can take more."""
        deltas = []
        for name in [name for name in self._grown if self.masters.get(name[0]) is session]:
            del self._grown[name]
            log, index = self._cursors[name]
            delta = log.since(index)
            if delta is not None:
                self._cursors[name] = (log, delta.first_index + len(delta.token_ids))
                deltas.append(AttemptDelta(name[1], delta))
        if deltas:
            session.say(self, Deltas(deltas))

    def has_grown(self, session: Session) -> bool:
        """Whether `cut` would write."""
        return any(self.masters.get(name[0]) is session for name in self._grown)

    # ---------------------------------------------------------------------------------------------------- effects

    def run(self, effects: list[fx.Effect], now: float) -> None:
        """Carry out, in order."""
        for effect in effects:
            self._apply(effect, now)

    def _apply(self, effect: fx.Effect, now: float) -> None:
        match effect:
            case fx.StartJob(command=command):
                self._check_start(effect, now)
                self.engine.start(effect, self._book.request(command.key.request_id))
            case fx.EndJob(job_id=job_id):
                self.engine.end(job_id)
            case fx.EngineCommand(command=command):
                self.engine.commands.append(command)
            case fx.FinishSequence(job_id, choice, num):
                self.engine.finish(job_id, choice, num)
            case fx.SendToPeer(worker=worker, message=message) if worker in self.peers:
                self.peers[worker].say(self, message)
            case fx.WantPeers(peers=peers):
                self.wanted = peers
            case _:
                if isinstance(effect, fx.Forget):
                    self._end(effect.key, now)
                self._say(effect)

    def _say(self, effect: fx.Effect) -> None:
        match effect:
            case fx.SendToMaster(master=master, event=event) if master in self.masters:
                self.masters[master].say(self, event)
            case fx.Follow(master, key, choice, log, next_index) if master in self.masters:
                self._cursors[master, key, choice] = (log, next_index)
                self._grown[master, key, choice] = None
            case fx.Grown(master, key, choice) if (master, key, choice) in self._cursors:
                self._grown[master, key, choice] = None
            case fx.Forget(master, key, choices):
                for choice in choices:
                    self._cursors.pop((master, key, choice), None)
                    self._grown.pop((master, key, choice), None)

    # ------------------------------------------------------------------------------------- what must never happen

    def _note_ends(self, message: Any, now: float) -> None:  # noqa: ANN401
        match message:
            case Abort(keys=keys):
                for key in keys:
                    self._end(key, now)
            case peer.Cancel(key=key):
                self._end(key, now)

    def _end(self, key: AttemptKey, now: float) -> None:
        attempt, _ = self._ended.get(key.request_id, (0, 0.0))
        if key.attempt >= attempt:
            self._ended[key.request_id] = (key.attempt, now)

    def _check_start(self, start: fx.StartJob, now: float) -> None:
        """Nothing starts that has ended, and nothing is reserved for a master that is not there (R5)."""
        key = start.command.key
        attempt, since = self._ended.get(key.request_id, (0, 0.0))
        if start.work.kind is not WorkKind.RESUMED and now - since < Times().tombstone_s:
            assert key.attempt > attempt, f"{key} starts again after its end"
        if isinstance(start.command, ipc.Reserve):
            master = self.core._masters.attempts[key.request_id].master
            assert master in self.masters, f"{key} is reserved without a session to its master"

    def _check_peers(self, worker: WorkerRef) -> None:
        """What an earlier start of a prefill worker asked for is gone when the new one comes."""
        held = {one.peer for one in self.core._by_job.values() if one.peer.worker_id == worker.worker_id}
        assert held <= {worker}, f"reservations of an earlier start: {held}"

    # ------------------------------------------------------------------------------------------------------ inside

    def take_event(self, now: float) -> None:
        """Hand the engine's next event to the core."""
        self.run(self.core.job_event(self.engine.events.popleft(), now), now)

    def reserve_first(self, job_id: int, now: float) -> None:
        """The Router wants a grant before this prompt is computed."""
        self.run(self.core.job_event(ReserveFirst(job_id), now), now)

    def refuse(self, job_id: int, error: Any, now: float) -> None:  # noqa: ANN401
        """The Router gives a job up."""
        del self.engine.waiting[job_id]
        self.run(self.core.job_refused(job_id, error, now), now)

    def drain(self, now: float) -> None:
        """Take nothing new."""
        self.draining = True
        self.run(self.core.drain(now), now)

    def beat(self, now: float) -> None:
        """Once a second."""
        self.run(self.core.tick(now), now)
        for master, session in self.masters.items():
            session.say(self, self._heartbeat(master))
