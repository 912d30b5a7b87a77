"""The worker's service: carries messages, events and time into its protocol core, and the core's effects out.

One per worker process, on its event loop. Nothing here decides: the core does (`services.prefill.handoff`,
`services.decode.reservations`). Effects are carried out in order and at once; none of them waits.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeAlias

from services.common.errors import SluiceError
from services.common.messages import (
    AttemptEvent,
    CacheWanted,
    Heartbeat,
    MasterHello,
    MasterMessage,
    MasterRef,
    Peer,
    ProvenPair,
    WorkerHello,
    WorkerRef,
)
from services.common.metrics import WorkerMetrics
from services.common.peer_messages import DecodeMessage, PrefillMessage
from services.worker.cache_account import CacheJournal
from services.worker.engine_client import EngineClient
from services.worker.jobs import JobEvent, Jobs
from services.worker.protocol import effects as fx
from services.worker.protocol.core import ProtocolCore
from services.worker.session import MasterSession
from services.worker.session_errors import LeavingError, SupersededError
from services.worker.status import Status

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
Core: TypeAlias = ProtocolCore[Any]


class PeerPort(Protocol):
    """The other workers, as the service sees them."""

    def send(self, worker: WorkerRef, message: PrefillMessage | DecodeMessage) -> None:
        """Say something; dropped without a session."""
        ...

    def want(self, peers: tuple[Peer, ...]) -> None:
        """Keep sessions to these and to no others."""
        ...

    def proven(self) -> list[ProvenPair]:
        """Pairs that may be used."""
        ...


class NoPeers:
    """For the role `mixed`, which works alone."""

    def send(self, worker: WorkerRef, message: PrefillMessage | DecodeMessage) -> None:
        """Nobody to say it to."""

    def want(self, peers: tuple[Peer, ...]) -> None:
        """Nobody to keep."""

    def proven(self) -> list[ProvenPair]:
        """None."""
        return []


class WorkerService:
    """See the module. `start` gives it its core and its peers, once the engine is ready."""

    core: Core
    jobs: Jobs
    peers: PeerPort

    def __init__(self, engine: EngineClient, hello: WorkerHello, status: Status, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._hello = hello
        self._status = status
        self._metrics = metrics
        self._numbers = itertools.count(1)
        self._sessions: dict[MasterRef, tuple[int, MasterSession]] = {}
        self._inputs: deque[Callable[[float], list[fx.Effect]]] = deque()
        self._busy = False
        self.cache = CacheJournal()
        """What the engine's prefix cache holds."""
        self.broken = asyncio.Event()
        """Set when the core or a background task failed: the process must end, since what it holds can be wrong."""
        self.drained = asyncio.Event()
        """Set while draining, once nothing is left: no job here, no attempt that a present master still wants."""

    def hand_in(self, act: Callable[[float], list[fx.Effect]]) -> None:
        """Call the core with `now` and carry out its effects; what comes up meanwhile waits its turn.

        Once something has failed nothing more is said to the core, whose state can be wrong.
        """
        if self.broken.is_set():
            return
        self._inputs.append(act)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inputs:
                for effect in self._inputs.popleft()(time.monotonic()):
                    self._apply(effect)
        except Exception:
            log.exception("the protocol's core failed")  # here: not every one who hands in would tell
            self.broken.set()
            raise
        finally:
            self._busy = False
        if self._status.draining and self._is_idle():
            self.drained.set()

    def watch(self, task: "asyncio.Task[None]") -> None:
        """Have a background task's failure end the process."""
        task.add_done_callback(self._task_done)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a background task failed", exc_info=error)
            self.broken.set()

    def _is_idle(self) -> bool:
        return not len(self.jobs) and not any(self.core.held(master) for master in self._sessions)

    # --------------------------------------------------------------------------------------------------- from masters

    def open_session(self, hello: MasterHello) -> MasterSession:
        """A master came; an older session of the same start of it ends."""
        session, number = MasterSession(hello, self._metrics.sessions, self.cache), next(self._numbers)
        before = self._sessions.get(hello.master)
        if before is not None:
            before[1].outbox.close(SupersededError("a newer session of this master took its place"))
        self._sessions[hello.master] = (number, session)
        self._metrics.sessions.masters.set(len(self._sessions))
        session.outbox.say(self._hello)
        session.beat(self._heartbeat(hello.master))
        log.info("master %s is here", hello.master.master_id)
        self.hand_in(lambda now: self.core.master_hello(hello.master, number, hello.live, now))
        return session

    def master_said(self, session: MasterSession, message: MasterMessage) -> None:
        """A message of a session; those of a superseded one are dropped."""
        if isinstance(message, CacheWanted):
            session.cache.restart()
        elif self._number(session) is not None:
            self.hand_in(lambda now: self.core.from_master(session.master, message, now))

    def session_lost(self, session: MasterSession) -> None:
        """A stream is gone."""
        number = self._number(session)
        if number is not None:
            del self._sessions[session.master]
            self._metrics.sessions.masters.set(len(self._sessions))
            log.info("master %s is gone", session.master.master_id)
            self.hand_in(lambda now: self.core.master_closed(session.master, number, now))

    def _number(self, session: MasterSession) -> int | None:
        number, current = self._sessions.get(session.master, (0, None))
        return number if current is session else None

    # ----------------------------------------------------------------------------------- from the engine and the clock

    def job_event(self, event: JobEvent) -> None:
        """An event of Router or engine about a job."""
        self.hand_in(lambda now: self.core.job_event(event, now))

    async def beat(self) -> None:
        """Each second, until cancelled: sweep, and tell every master how this worker is."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + HEARTBEAT_S, loop.time())
            await asyncio.sleep(due - loop.time())
            self.hand_in(self.core.tick)
            self._status.sample()
            self.tell_masters()

    def tell_masters(self) -> None:
        """Say how this worker is, on the beat or when it has changed in a way that masters wait for."""
        for master, (_, session) in self._sessions.items():
            session.beat(self._heartbeat(master))

    def _heartbeat(self, master: MasterRef) -> Heartbeat:
        status = self._status
        held = self.core.held(master)
        return Heartbeat(
            load=status.load,
            engine_age_s=self._engine.age_s,
            ready=status.problem() is None,
            draining=status.draining,
            proven=self.peers.proven(),
            held=held,
            drain_left_s=status.drain_left_s,
        )

    # ------------------------------------------------------------------------------------------------------- effects

    def _apply(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Grown):  # one for every token: all else is rare beside it
            entry = self._sessions.get(effect.master)
            if entry is not None:
                entry[1].grown(effect.key, effect.choice)
        elif isinstance(effect, fx.Follow | fx.Forget | fx.SendToMaster):
            if isinstance(effect, fx.SendToMaster):
                _log_event(effect.event)
            entry = self._sessions.get(effect.master)
            if entry is not None:
                _apply_to_session(entry[1], effect)
        elif isinstance(effect, fx.SendToPeer):
            self.peers.send(effect.worker, effect.message)
        elif isinstance(effect, fx.WantPeers):
            self.peers.want(effect.peers)
        else:
            self._apply_to_jobs(effect)

    def _apply_to_jobs(self, effect: fx.Effect) -> None:
        match effect:
            case fx.StartJob():
                self._start(effect)
            case fx.EndJob(job_id):
                self.jobs.end(job_id)
            case fx.JobGranted(job_id):
                self.jobs.granted(job_id)
            case fx.FinishSequence(job_id, choice, num_output_tokens):
                self.jobs.finish(job_id, choice, num_output_tokens)
            case fx.EngineCommand(command):
                self._engine.send(command)

    def _start(self, effect: fx.StartJob) -> None:
        try:
            self.jobs.start(effect.work, effect.command, effect.traceparent)
        except SluiceError as error:
            self._metrics.router.refused.labels(error.code).inc()
            job_id, refusal = effect.command.job_id, error
            self.hand_in(lambda now: self.core.job_refused(job_id, refusal, now))

    # ---------------------------------------------------------------------------------------------------------- drain

    def drain(self, within_s: float) -> None:
        """Take nothing new from now on, and be gone in `within_s` (R17)."""
        self._status.drain(within_s)
        self.hand_in(self.core.drain)
        self.tell_masters()

    def close_sessions(self) -> None:
        """End all streams once what waits has been written."""
        for _, session in self._sessions.values():
            session.outbox.close(LeavingError("this worker leaves"))


def _apply_to_session(session: MasterSession, effect: fx.Follow | fx.Forget | fx.SendToMaster) -> None:
    match effect:
        case fx.Follow(_, key, choice, output, next_index):
            session.follow(key, choice, output, next_index)
        case fx.Forget(_, key, choices):
            session.forget(key, choices)
        case fx.SendToMaster(_, event):
            session.event(event)


def _log_event(event: AttemptEvent) -> None:
    """One line for each state transition of a request."""
    fields = ((name, getattr(event, name)) for name in event.__struct_fields__ if name != "key")
    details = [f" {name}={_shown(value)}" for name, value in fields if value not in (None, "")]
    what = type(event).__name__.lower() + "".join(details)
    log.info("attempt %d %s", event.key.attempt, what, extra={"request_id": event.key.request_id})


def _shown(value: object) -> str:
    match value:
        case WorkerRef():
            return value.worker_id
        case Enum():
            return str(value.value)
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)
