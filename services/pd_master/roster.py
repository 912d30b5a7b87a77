"""Who the workers are, to one master: their loads and pairs, who is lost, and who must be told of whom.

    address known --hello--> present --stream breaks--> absent --Liveness--> lost
                                ^--- hello of the same start ---'
                                |
              a hello of another start from the same worker id: the one before is lost at once

Workers are keyed by their incarnation everywhere, so what an old connection leaves behind never touches a newer one.
Nothing here waits or connects: the registry does.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from services.common.messages import (
    PROTOCOL,
    CacheChanges,
    CacheWanted,
    Heartbeat,
    Load,
    MasterHello,
    MasterMessage,
    MasterRef,
    Peer,
    Peers,
    Reconcile,
    Role,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.pd_master.liveness import WORKER_TIMEOUT_S, Liveness
from services.pd_master.pending_load import Pending, PendingLoad
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.selector import Snapshot, WorkerView

log = logging.getLogger(__name__)


class WorkHandler(Protocol):
    """The dispatcher, as the registry sees it. No method waits."""

    def reconcile(self, worker: WorkerRef) -> Reconcile:
        """What this master believes the worker holds."""
        ...

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message about attempts, or a heartbeat."""
        ...

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        """The worker will not come back as this incarnation."""
        ...

    def worker_stalled(self, worker: WorkerRef) -> None:
        """The worker is there, but its engine stands still; said again each second."""
        ...


class Session(Protocol):
    """A session to a worker, as the roster sees it."""

    @property
    def address(self) -> str:
        """Where the worker is."""
        ...

    @property
    def quiet_s(self) -> float:
        """How long it has said nothing; of a session that has ended, how long before its end."""
        ...

    def say(self, message: MasterMessage) -> None:
        """Write to it."""
        ...


@dataclass(slots=True)
class _Worker:
    hello: WorkerHello
    session: Session | None
    heartbeat: Heartbeat | None = None
    proven: dict[WorkerRef, float] = field(default_factory=dict)
    """As the heartbeat has it."""
    view: WorkerView | None = None
    """The last that was made of it, for as long as it is true."""


class Roster:
    """Owned by the registry, which tells it of sessions and lets it `sweep` and `reconcile`. Whoever takes the work is
    told within those calls: set `handler` before the first of them."""

    handler: WorkHandler

    def __init__(
        self,
        master: MasterRef,
        pending: PendingLoad,
        clock: Callable[[], float],
        worker_timeout_s: float = WORKER_TIMEOUT_S,
        withheld: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """withheld: addresses that get no new work now."""
        self.prefixes = PrefixIndex()
        """What the workers' prefix caches hold."""
        self.liveness = Liveness(worker_timeout_s)
        self._master = master
        self._pending = pending
        self._clock = clock
        self._withheld = withheld
        self._workers: dict[WorkerRef, _Worker] = {}
        self._draw = random.Random()

    # ------------------------------------------------------------------------------------------------------ questions

    def snapshot(self) -> Snapshot:
        """All workers with a session, for the selector and for people."""
        withheld = self._withheld()
        present = [(one, one.session) for one in self._workers.values() if one.session is not None]
        views = [self._view(one, is_open=session.address not in withheld) for one, session in present]
        quiet = [self._is_quiet(one) for one, _ in present]
        if any(quiet):
            views = _pass_over(views, quiet)
        return Snapshot(tuple(views), self._draw.random())

    def _is_quiet(self, one: _Worker) -> bool:
        return one.session is not None and one.session.quiet_s >= self.liveness.quiet_s

    def _view(self, one: _Worker, *, is_open: bool) -> WorkerView:
        """The view of before where it is still true: each request changes that of one worker or two, and asks for
        all."""
        worker, beat, view = one.hello.worker, one.heartbeat, one.view
        takes_work = is_open and beat is not None and beat.ready and not beat.draining
        pending = self._pending.of(worker)
        if view is None or view.takes_work is not takes_work or _pending_of(view) != pending:
            view = one.view = self._new_view(one, takes_work, pending)
        return view

    @staticmethod
    def _new_view(one: _Worker, takes_work: bool, pending: Pending) -> WorkerView:
        hello, beat = one.hello, one.heartbeat
        return WorkerView(
            worker=hello.worker,
            role=hello.role,
            group=hello.group,
            model=hello.model,
            address=hello.address,
            limits=hello.limits,
            load=Load() if beat is None else beat.load,
            takes_work=takes_work,
            proven=one.proven,
            pending_requests=pending.num_requests,
            pending_tokens=pending.num_tokens,
            freed_tokens=pending.num_freed,
            draining=beat is not None and beat.draining,
        )

    def say(self, worker: WorkerRef, message: MasterMessage) -> None:
        """Write to a worker; dropped unless there is a session to exactly this start of it."""
        one = self._workers.get(worker)
        if one is not None and one.session is not None:
            one.session.say(message)

    # ---------------------------------------------------------------------------------------------------------- times

    def sweep(self) -> None:
        """Give up whom nobody has heard of for long. Several times a second."""
        quiet = {worker for worker, one in self._workers.items() if self._is_quiet(one)}
        for worker, crashed in self.liveness.tick(self._clock(), quiet):
            self._lose(worker, crashed=crashed)

    def reconcile(self) -> None:
        """Say to each worker what this master believes it holds (R8). Each second."""
        for worker in list(self._workers):
            self.say(worker, self.handler.reconcile(worker))

    # --------------------------------------------------------------------------------------------- from the sessions

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:
        """What to say first to the address where this worker was seen last."""
        live = [] if worker is None else self.handler.reconcile(worker).live
        return MasterHello(PROTOCOL, self._master, live, reads_columns=True, reads_batches=True)

    def up(self, session: Session, hello: WorkerHello) -> None:
        """A worker answered: it takes the place of its earlier starts."""
        for other in list(self._workers):
            if other.worker_id == hello.worker.worker_id and other != hello.worker:
                self._lose(other, crashed=True)
        log.info("worker %s (%s) is here at %s", hello.worker.worker_id, hello.role.value, session.address)
        self._workers[hello.worker] = _Worker(hello, session)
        self.liveness.up(hello.worker)
        self._tell_peers(hello)

    def said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message came; one from a start that is lost already has no effect."""
        if worker not in self._workers:
            return
        if isinstance(message, CacheChanges):
            if not self.prefixes.follow(worker, message):
                log.warning("worker %s: changes of its prefix cache were lost", worker.worker_id)
                self.say(worker, CacheWanted())
            return
        if isinstance(message, Heartbeat):
            self._heartbeat(worker, message)
        self.handler.worker_said(worker, message)

    def _heartbeat(self, worker: WorkerRef, beat: Heartbeat) -> None:
        known = self._workers[worker]
        was_stalled = known.heartbeat is not None and _is_stalled(known.heartbeat)
        known.heartbeat, known.view = beat, None
        known.proven = {pair.worker: pair.gb_per_s for pair in beat.proven}
        if _is_stalled(beat) != was_stalled:
            state = "makes no step" if not was_stalled else "is at work again"
            log.warning("worker %s: its engine %s, age %.1f s", worker.worker_id, state, beat.engine_age_s)
        if self.liveness.stalled(worker, is_stalled=_is_stalled(beat)):
            self.handler.worker_stalled(worker)

    def down(self, session: Session, worker: WorkerRef) -> None:
        """A session ended; nothing happens when another has taken its place."""
        one = self._workers.get(worker)
        if one is not None and one.session is session:
            log.info("worker %s at %s: session lost", worker.worker_id, session.address)
            one.session = None
            self.liveness.down(worker, self._clock(), session.quiet_s)

    def refused(self, worker: WorkerRef) -> None:
        """Nobody listens where this worker was."""
        self.liveness.refused(worker)

    def _lose(self, worker: WorkerRef, *, crashed: bool) -> None:
        log.warning("worker %s (%s) is lost", worker.worker_id, worker.incarnation)
        self.liveness.forget(worker)
        self.prefixes.forget(worker)
        gone = self._workers.pop(worker, None)
        self.handler.worker_lost(worker, crashed=crashed)
        self._pending.lost(worker)
        if gone is not None:
            self._tell_peers(gone.hello)

    def _tell_peers(self, changed: WorkerHello) -> None:
        """Prefill workers learn which decode workers there are, each time all of them."""
        group = [one.hello for one in self._workers.values() if one.hello.group == changed.group]
        peers = Peers([Peer(hello.worker, hello.address) for hello in group if hello.role is Role.DECODE])
        for hello in group:
            if hello.role is Role.PREFILL and (changed.role is Role.DECODE or hello.worker == changed.worker):
                self.say(hello.worker, peers)


def _pass_over(views: list[WorkerView], quiet: list[bool]) -> list[WorkerView]:
    """Quiet workers take nothing, where others of their part take it in their place."""
    pairs = list(zip(views, quiet, strict=True))
    heard = {_part(view) for view, is_quiet in pairs if view.takes_work and not is_quiet}
    return [
        msgspec.structs.replace(view, takes_work=False) if is_quiet and _part(view) in heard else view
        for view, is_quiet in pairs
    ]


def _part(view: WorkerView) -> tuple[str, Role]:
    return view.group, view.role


def _pending_of(view: WorkerView) -> Pending:
    """What it was made with."""
    return Pending(view.pending_requests, view.pending_tokens, view.freed_tokens)


def _is_stalled(beat: Heartbeat) -> bool:
    """A worker says hello once its model is loaded, so one that does not drain and is not ready has a stuck engine."""
    return not beat.ready and not beat.draining
