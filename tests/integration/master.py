"""A master in the test's own process: registry and dispatcher as they are, towards real workers."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable

from services.common.messages import MasterRef
from services.common.request import Delta, Request, SamplingParams, StopParams
from services.pd_master.discovery import StaticDiscovery
from services.pd_master.dispatcher import PdDispatcher
from services.pd_master.generation import ClientGeneration
from services.pd_master.pending_load import PendingLoad
from services.pd_master.registry import Registry


class RunningMaster:
    """One master under test."""

    def __init__(self, *addresses: str, master_id: str = "m") -> None:
        pending = PendingLoad()
        self.registry = Registry(MasterRef(master_id, uuid.uuid4().hex), StaticDiscovery(addresses), pending)
        self.dispatcher = PdDispatcher(self.registry, pending, client_buffer_bytes=1 << 20, client_stall_s=30.0)
        self.task = asyncio.create_task(self.registry.run(self.dispatcher))

    async def ready(self, num_firsts: int, num_decodes: int = 0) -> None:
        """Wait until so many workers take prompts, and each prefill worker has reached so many decode workers."""
        await self.until(lambda: self._is_ready(num_firsts, num_decodes))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is true of this master."""
        async with asyncio.timeout(120):
            while not holds():
                assert not self.task.done(), self.task.result()
                await asyncio.sleep(0.02)

    def _is_ready(self, num_firsts: int, num_decodes: int) -> bool:
        views = [view for view in self.registry.snapshot().workers if view.takes_work]
        firsts = [view for view in views if view.role.value == "mixed" or len(view.proven) >= num_decodes > 0]
        decodes = [view for view in views if view.role.value == "decode"]
        return len(firsts) >= num_firsts and len(decodes) >= num_decodes

    async def stop(self) -> None:
        """End its tasks, as a process that dies does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def master(*addresses: str, master_id: str = "m") -> AsyncIterator[RunningMaster]:
    """A master for these workers."""
    running = RunningMaster(*addresses, master_id=master_id)
    try:
        yield running
    finally:
        await running.stop()


def prompt(number: int, num_tokens: int = 20) -> list[int]:
    """Distinct prompts of ordinary ids."""
    return [1_000 + (number * 7919 + position * 31) % 20_000 for position in range(num_tokens)]


def request(prompt_ids: list[int], num_tokens: int, **fields: object) -> Request:
    """A request that ends by its length alone."""
    stop = StopParams(num_tokens, ignore_eos=True)
    return Request(uuid.uuid4().hex, "demo", prompt_ids, SamplingParams(temperature=0.0), stop, **fields)  # type: ignore[arg-type]


class Collected:
    """What one client got."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.deltas: list[Delta] = []

    def take(self, deltas: list[Delta]) -> None:
        """A batch; its indices must follow what came before."""
        for delta in deltas:
            ids = self.ids.setdefault(delta.choice, [])
            assert delta.first_index == len(ids)
            ids.extend(delta.token_ids)
            self.deltas.append(delta)


async def collect(generation: ClientGeneration) -> Collected:
    """Read to the end. Raises what ended the request."""
    collected = Collected()
    async with asyncio.timeout(120):
        async for deltas in generation:
            collected.take(deltas)
    return collected
