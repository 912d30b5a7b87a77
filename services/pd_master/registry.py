"""The workers as this master sees them: a link to each address, their loads and pairs, who is lost.

    address known --hello--> present --stream breaks--> absent --Liveness--> lost
                                ^--- hello of the same start ---'
                                |
              a hello of another start from the same worker id: the one before is lost at once

Workers are keyed by their incarnation everywhere, so what an old connection leaves behind never touches a newer one.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.common import rpc
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
from services.pd_master.catalog import Catalog
from services.pd_master.discovery import Discovery
from services.pd_master.liveness import WORKER_TIMEOUT_S, Liveness
from services.pd_master.pending_load import PendingLoad
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.selector import Snapshot, WorkerView
from services.pd_master.worker_link import WorkerLink

log = logging.getLogger(__name__)

_SWEEP_S = 0.25
_RECONCILE_S = 1.0


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


@dataclass(slots=True)
class _Worker:
    hello: WorkerHello
    link: WorkerLink | None
    heartbeat: Heartbeat | None = None


class Registry:
    """Owns links and sweeper, in the master process, on its event loop. `run` until cancelled."""

    def __init__(
        self,
        master: MasterRef,
        discovery: Discovery,
        pending: PendingLoad,
        worker_timeout_s: float = WORKER_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        dial: rpc.Dial = rpc.channel,
    ) -> None:
        self._dial = dial
        self.catalog = Catalog()
        self.prefixes = PrefixIndex()
        """What the workers' prefix caches hold."""
        self._master = master
        self._discovery = discovery
        self._pending = pending
        self._clock = clock
        self._handler: WorkHandler | None = None
        self._links: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[WorkerRef, _Worker] = {}
        self._liveness = Liveness(worker_timeout_s)
        self._silence_s = worker_timeout_s / 2
        self._draw = random.Random()

    # ------------------------------------------------------------------------------------------------------ questions

    @property
    def models(self) -> Catalog:
        """What is served."""
        return self.catalog

    def snapshot(self) -> Snapshot:
        """All workers with a session, for the selector and for people."""
        present = [one for one in self._workers.values() if one.link is not None]
        return Snapshot(tuple(self._view(one) for one in present), self._draw.random())

    def _view(self, one: _Worker) -> WorkerView:
        hello, beat = one.hello, one.heartbeat
        open_to_work = one.link is not None and one.link.address not in self._discovery.withheld
        able = beat is not None and beat.ready and not beat.draining
        return WorkerView(
            worker=hello.worker,
            role=hello.role,
            group=hello.group,
            model=hello.model,
            address=hello.address,
            limits=hello.limits,
            load=Load() if beat is None else beat.load,
            takes_work=open_to_work and able,
            proven={} if beat is None else {pair.worker: pair.gb_per_s for pair in beat.proven},
            pending_requests=self._pending.num_requests(hello.worker),
            pending_tokens=self._pending.num_tokens(hello.worker),
            draining=beat is not None and beat.draining,
        )

    def say(self, worker: WorkerRef, message: MasterMessage) -> None:
        """Write to a worker; dropped unless there is a session to exactly this start of it."""
        one = self._workers.get(worker)
        if one is not None and one.link is not None:
            one.link.say(message)

    # ---------------------------------------------------------------------------------------------------------- tasks

    async def run(self, handler: WorkHandler) -> None:
        """Keep sessions to all workers until cancelled."""
        self._handler = handler
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_discovery(tasks))
                tasks.create_task(self._sweep())
                tasks.create_task(self._reconcile())
        finally:
            await self.catalog.close()

    async def _follow_discovery(self, tasks: asyncio.TaskGroup) -> None:
        async for addresses in self._discovery.addresses():
            for address in addresses - self._links.keys():
                self._links[address] = tasks.create_task(
                    WorkerLink(address, self, self._silence_s, self._dial).run(), name=f"link {address}"
                )
            for address in self._links.keys() - addresses:
                self._links.pop(address).cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for worker, crashed in self._liveness.tick(self._clock()):
                self._lose(worker, crashed=crashed)

    async def _reconcile(self) -> None:
        while True:
            await asyncio.sleep(_RECONCILE_S)
            for worker in list(self._workers):
                self.say(worker, self._work.reconcile(worker))

    @property
    def _work(self) -> WorkHandler:
        assert self._handler is not None, "run was called"
        return self._handler

    # ------------------------------------------------------------------------------------------------ from the links

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:
        """What to say first to the address where this worker was seen last."""
        live = [] if worker is None else self._work.reconcile(worker).live
        return MasterHello(PROTOCOL, self._master, live)

    def link_up(self, link: WorkerLink, hello: WorkerHello) -> None:
        """A worker answered: it takes the place of its earlier starts."""
        for other in list(self._workers):
            if other.worker_id == hello.worker.worker_id and other != hello.worker:
                self._lose(other, crashed=True)
        log.info("worker %s (%s) is here at %s", hello.worker.worker_id, hello.role.value, link.address)
        self._workers[hello.worker] = _Worker(hello, link)
        self._liveness.up(hello.worker)
        assert link.channel is not None
        self.catalog.seen(hello, link.channel)
        self._tell_peers(hello)

    def link_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message came."""
        if isinstance(message, CacheChanges):
            if not self.prefixes.follow(worker, message):
                log.warning("worker %s: changes of its prefix cache were lost", worker.worker_id)
                self.say(worker, CacheWanted())
            return
        if isinstance(message, Heartbeat):
            self._heartbeat(worker, message)
        self._work.worker_said(worker, message)

    def _heartbeat(self, worker: WorkerRef, beat: Heartbeat) -> None:
        known = self._workers[worker]
        was_stalled = known.heartbeat is not None and _is_stalled(known.heartbeat)
        known.heartbeat = beat
        if _is_stalled(beat) != was_stalled:
            state = "makes no step" if not was_stalled else "is at work again"
            log.warning("worker %s: its engine %s, age %.1f s", worker.worker_id, state, beat.engine_age_s)
        if self._liveness.stalled(worker, is_stalled=_is_stalled(beat)):
            self._work.worker_stalled(worker)

    def link_down(self, link: WorkerLink, worker: WorkerRef) -> None:
        """A session ended; nothing happens when another link has taken its place."""
        one = self._workers.get(worker)
        if one is not None and one.link is link:
            log.info("worker %s at %s: session lost", worker.worker_id, link.address)
            one.link = None
            self._liveness.down(worker, self._clock())

    def link_refused(self, worker: WorkerRef) -> None:
        """Nobody listens where this worker was."""
        self._liveness.refused(worker)

    def _lose(self, worker: WorkerRef, *, crashed: bool) -> None:
        log.warning("worker %s (%s) is lost", worker.worker_id, worker.incarnation)
        self._liveness.forget(worker)
        self.prefixes.forget(worker)
        gone = self._workers.pop(worker, None)
        self._work.worker_lost(worker, crashed=crashed)
        if gone is not None:
            self._tell_peers(gone.hello)

    def _tell_peers(self, changed: WorkerHello) -> None:
        """Prefill workers learn which decode workers there are, each time all of them."""
        group = [one.hello for one in self._workers.values() if one.hello.group == changed.group]
        peers = Peers([Peer(hello.worker, hello.address) for hello in group if hello.role is Role.DECODE])
        for hello in group:
            if hello.role is Role.PREFILL and (changed.role is Role.DECODE or hello.worker == changed.worker):
                self.say(hello.worker, peers)


def _is_stalled(beat: Heartbeat) -> bool:
    """A worker says hello once its model is loaded, so one that does not drain and is not ready has a stuck engine."""
    return not beat.ready and not beat.draining
