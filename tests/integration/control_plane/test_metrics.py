"""Every series that a worker declares is fed."""

import asyncio

import pytest

from services.common.messages import Joined, Placed, PlacementRefused, Refused
from tests.fakes.master import make_request, master
from tests.fakes.workers import RunningWorker, workers

NOT_HERE = {"sluice_engine_host_pages"}
"""Engines that compute nothing keep nothing in host memory; test_preemption shows it on real ones."""
pytestmark = pytest.mark.demo_model


def declared(text: str) -> set[str]:
    """Families, by their own `# TYPE` lines, without creation times."""
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    return {name for name in names if not name.endswith("_created")}


def moved(text: str) -> set[str]:
    """Families with a sample other than zero."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    samples = {name.split("{")[0] for name, value in lines if float(value) != 0}
    return {name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket") for name in samples}


class Scrapes:
    """Families declared and moved over all scrapes of all workers."""

    def __init__(self, *running: RunningWorker) -> None:
        self._running = running
        self.declared: set[str] = set()
        self.moved: set[str] = set()

    async def until_moved(self, name: str) -> None:
        """Scrape until a family has moved."""
        async with asyncio.timeout(60):
            while name not in self.moved:
                await self.take()
                await asyncio.sleep(0.1)

    async def take(self) -> None:
        for one in self._running:
            if not one.task.done():
                text = await one.metrics()
                self.declared |= declared(text)
                self.moved |= moved(text)


async def test_every_declared_series_moves() -> None:
    starts = (
        lambda: RunningWorker("prefill", "--num-slots", "1500", "--defer-every", "5", "--push-s", "0.05", max_queue=3),
        lambda: RunningWorker("prefill", "--push-s", "30"),
        lambda: RunningWorker(
            "decode", "--num-slots", "700", "--step-s", "0.002", prior_output_tokens=1, reservation_lease_s=2.0
        ),
    )
    async with workers(*starts) as (p, slow, d), master(p.address, slow.address, d.address) as m:
        scrapes = Scrapes(p, slow, d)
        await m.pair(p.address, d.address)
        await m.pair(slow.address, d.address)
        growing = [make_request([salt % 2, *range(100, 149)], 300) for salt in range(4)]
        revoked = make_request([99, *range(100, 199)], 250)
        m.submit(revoked, slow.address, d.address)
        await m.event(revoked, Placed)
        for request in growing:  # they outgrow the pool: the reservation is revoked, then sequences are preempted
            m.submit(request, p.address, d.address)
        await m.event(growing[0], Joined)
        await m.event(revoked, PlacementRefused)
        await asyncio.sleep(1.1)  # ratios are sampled each second
        await scrapes.take()
        for request in growing:
            await m.finished(request)
        crowd = [make_request([salt, *range(100, 800)], 3) for salt in range(8)]
        keys = [m.submit(request, p.address, d.address) for request in crowd]
        await m.event(crowd[-1], Refused)
        await asyncio.sleep(1.1)
        await scrapes.take()
        for key in keys:
            m.abort(key)
        superseded = m.links[d.address]
        await m.connect(d.address)
        await m.until(lambda: superseded.error is not None)
        orphan, broken = make_request([1, 2], 5), make_request([3, 4], 5)
        m.submit(orphan, slow.address, d.address)
        await m.event(orphan, Placed)
        await slow.kill()
        await scrapes.until_moved("sluice_leases_expired_total")  # of what it asked for
        broken_key = m.submit(broken, p.address, d.address)
        await m.event(broken, Placed)
        d.worker.engine.kill()
        await asyncio.gather(d.task, return_exceptions=True)
        await m.event(broken, PlacementRefused)
        await scrapes.take()
        m.abort(broken_key)
    assert scrapes.declared - scrapes.moved == NOT_HERE
