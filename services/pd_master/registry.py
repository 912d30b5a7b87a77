"""This master's links to all workers that discovery names, and what it learns over them.

One task follows discovery and keeps a link to each address; who is there and who is lost is the roster's to say.
"""

import asyncio
import time
from collections.abc import Callable

from services.common import rpc
from services.common.messages import MasterHello, MasterMessage, MasterRef, WorkerHello, WorkerMessage, WorkerRef
from services.pd_master.catalog import Catalog
from services.pd_master.discovery import Discovery
from services.pd_master.liveness import WORKER_TIMEOUT_S
from services.pd_master.pending_load import PendingLoad
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.roster import Roster, WorkHandler
from services.pd_master.selector import Snapshot
from services.pd_master.worker_link import WorkerLink

_SWEEP_S = 0.25
_RECONCILE_S = 1.0


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
        self.catalog = Catalog()
        self._dial = dial
        self._discovery = discovery
        self._roster = Roster(master, pending, clock, worker_timeout_s, lambda: discovery.withheld)
        self._links: dict[str, asyncio.Task[None]] = {}

    @property
    def models(self) -> Catalog:
        """What is served."""
        return self.catalog

    @property
    def prefixes(self) -> PrefixIndex:
        """What the workers' prefix caches hold."""
        return self._roster.prefixes

    def snapshot(self) -> Snapshot:
        """All workers with a session, for the selector and for people."""
        return self._roster.snapshot()

    def say(self, worker: WorkerRef, message: MasterMessage) -> None:
        """Write to a worker; dropped unless there is a session to exactly this start of it."""
        self._roster.say(worker, message)

    # ---------------------------------------------------------------------------------------------------------- tasks

    async def run(self, handler: WorkHandler) -> None:
        """Keep sessions to all workers until cancelled."""
        self._roster.handler = handler
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_discovery(tasks))
                tasks.create_task(_every(_SWEEP_S, self._roster.sweep))
                tasks.create_task(_every(_RECONCILE_S, self._roster.reconcile))
        finally:
            await self.catalog.close()

    async def _follow_discovery(self, tasks: asyncio.TaskGroup) -> None:
        silence_s = self._roster.liveness.silence_s
        async for addresses in self._discovery.addresses():
            for address in addresses - self._links.keys():
                link = WorkerLink(address, self, silence_s, self._dial)
                self._links[address] = tasks.create_task(link.run(), name=f"link {address}")
            for address in self._links.keys() - addresses:
                self._links.pop(address).cancel()

    # ------------------------------------------------------------------------------------------------ from the links

    def hello_for(self, worker: WorkerRef | None) -> MasterHello:
        """What to say first to the address where this worker was seen last."""
        return self._roster.hello_for(worker)

    def link_up(self, link: WorkerLink, hello: WorkerHello) -> None:
        """A worker answered."""
        self._roster.up(link, hello)
        assert link.channel is not None
        self.catalog.seen(hello, link.channel)

    def link_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """A message came."""
        self._roster.said(worker, message)

    def link_down(self, link: WorkerLink, worker: WorkerRef) -> None:
        """A session ended."""
        self._roster.down(link, worker)

    def link_refused(self, worker: WorkerRef) -> None:
        """Nobody listens where this worker was."""
        self._roster.refused(worker)


async def _every(period_s: float, act: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(period_s)
        act()
