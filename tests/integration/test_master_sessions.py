"""Sessions between master and workers that break, and workers that come back, on real sockets (R7)."""

import asyncio
from functools import partial

import pytest

from services.common.messages import Role, WorkerRef
from tests.fakes.tokens import fake_output
from tests.fakes.workers import RunningWorker, workers
from tests.integration.master import RunningMaster, collect, master, prompt, request
from tests.integration.proxy import proxies
from tests.ports import free_ports

pytestmark = pytest.mark.demo_model

PREFILL = partial(RunningWorker, "prefill")
DECODE = partial(RunningWorker, "decode")
SLOW_DECODE = partial(RunningWorker, "decode", "--step-s", "0.02")


async def test_broken_sessions_resume_by_index_without_a_new_attempt() -> None:
    async with (
        workers(PREFILL, SLOW_DECODE) as running,
        proxies(*(one.address for one in running)) as wires,
        master(*(wire.address for wire in wires)) as running_master,
    ):
        await running_master.ready(1, 1)
        requests = [request(prompt(number), 120) for number in range(8)]
        generations = [await running_master.dispatcher.submit(one) for one in requests]
        readers = [asyncio.create_task(collect(generation)) for generation in generations]
        for number in range(1, 4):
            await running_master.until(lambda: all(wire.num_connections >= number for wire in wires))  # noqa: B023
            await asyncio.sleep(0.2)
            for wire in wires:
                wire.cut()
        for one, reader in zip(requests, readers, strict=True):
            assert (await reader).ids == {0: fake_output(one.prompt_ids, 120)}
        await running_master.until(lambda: all(wire.num_connections > 3 for wire in wires))
        integrity = await running[0].integrity()
        assert not integrity.problems
        for worker in running:
            await worker.until_empty()


async def test_worker_that_comes_back_on_its_address_is_used_and_its_old_self_is_not() -> None:
    (port,) = free_ports(1)
    start = partial(DECODE, grpc_port=port)
    async with workers(PREFILL, start) as running, master(*(one.address for one in running)) as running_master:
        await running_master.ready(1, 1)
        old = _decode_worker(running_master)
        await running[1].kill()
        running[1] = await start().serving()
        await running_master.until(lambda: _decode_worker(running_master) not in {None, old})
        new = _decode_worker(running_master)
        assert new is not None
        await running_master.until(
            lambda: any(new in view.proven for view in running_master.registry.snapshot().workers)
        )
        one = request(prompt(1), 20)
        assert (await collect(await running_master.dispatcher.submit(one))).ids == {0: fake_output(one.prompt_ids, 20)}


async def test_two_masters_share_workers_and_the_end_of_one_frees_only_its_own() -> None:
    async with workers(PREFILL, SLOW_DECODE) as running:
        addresses = [one.address for one in running]
        async with master(*addresses, master_id="other") as other:
            await other.ready(1, 1)
            async with master(*addresses, master_id="leaving") as leaving:
                await leaving.ready(1, 1)
                await leaving.dispatcher.submit(request(prompt(9), 5_000))
                one = request(prompt(2), 50)
                generation = await other.dispatcher.submit(one)
            assert (await collect(generation)).ids == {0: fake_output(one.prompt_ids, 50)}
        for worker in running:
            await worker.until_empty()


def _decode_worker(master: RunningMaster) -> WorkerRef | None:
    found = [view.worker for view in master.registry.snapshot().workers if view.role is Role.DECODE]
    return found[0] if found else None
