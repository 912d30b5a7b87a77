"""The master's edge against real workers over real sockets; the engines are fakes, so every answer is known."""

import asyncio
import os
import signal
from functools import partial

import pytest

from services.common.errors import DeadlineError, NoWorkerError
from tests.fakes.tokens import fake_output
from tests.fakes.workers import RunningWorker, workers
from tests.integration.master import collect, master, prompt, request

pytestmark = pytest.mark.demo_model

PREFILL = partial(RunningWorker, "prefill")
DECODE = partial(RunningWorker, "decode")
SLOW_DECODE = partial(RunningWorker, "decode", "--step-s", "0.02")


async def test_output_through_prefill_and_decode_is_what_the_engines_make() -> None:
    async with workers(PREFILL, DECODE) as running, master(*(one.address for one in running)) as running_master:
        await running_master.ready(1, 1)
        requests = [request(prompt(number), 30) for number in range(16)]
        generations = [await running_master.dispatcher.submit(one) for one in requests]
        for one, generation in zip(requests, generations, strict=True):
            assert (await collect(generation)).ids == {0: fake_output(one.prompt_ids, 30)}
        for worker in running:
            await worker.until_empty()
        assert running_master.dispatcher.num_running == 0


async def test_choices_of_one_prompt_come_side_by_side() -> None:
    async with workers(PREFILL, DECODE) as running, master(*(one.address for one in running)) as running_master:
        await running_master.ready(1, 1)
        one = request(prompt(1), 10, num_choices=3)
        collected = await collect(await running_master.dispatcher.submit(one))
        assert collected.ids == {choice: fake_output(one.prompt_ids, 10, choice) for choice in range(3)}


async def test_a_decode_worker_computes_short_prompts_whose_kv_would_take_longer_to_move() -> None:
    heavy = ("--kv-bytes", "100000000")  # 20 tokens would take 2 s at the fake pair's 1 GB/s
    roles = (partial(RunningWorker, "prefill", *heavy), partial(RunningWorker, "decode", *heavy, "--step-s", "0.005"))
    async with workers(*roles) as running, master(*(one.address for one in running)) as running_master:
        await running_master.ready(1, 1)
        requests = [request(prompt(number), 30, num_choices=1 + number % 2) for number in range(8)]
        generations = [await running_master.dispatcher.submit(one) for one in requests]
        aborted = await running_master.dispatcher.submit(request(prompt(99), 1000))
        for one, generation in zip(requests, generations, strict=True):
            expected = {choice: fake_output(one.prompt_ids, 30, choice) for choice in range(one.num_choices)}
            assert (await collect(generation)).ids == expected
        await aborted.aclose()
        for worker in running:
            await worker.until_empty()
        assert "sluice_prompt_tokens_total 0.0" in await running[0].metrics()


async def test_streams_go_on_when_a_decode_worker_is_killed() -> None:
    async with (
        workers(PREFILL, SLOW_DECODE, SLOW_DECODE) as running,
        master(*(one.address for one in running)) as running_master,
    ):
        await running_master.ready(1, 2)
        requests = [request(prompt(number), 60) for number in range(16)]
        generations = [await running_master.dispatcher.submit(one) for one in requests]
        readers = [asyncio.create_task(collect(generation)) for generation in generations]
        await running[1].until_decoding()
        await running[1].kill()
        for one, reader in zip(requests, readers, strict=True):
            assert (await reader).ids == {0: fake_output(one.prompt_ids, 60)}
        await running[0].until_empty()
        await running[2].until_empty()


async def test_streams_go_on_when_an_engine_is_wedged() -> None:
    wedging = partial(RunningWorker, "decode", "--step-s", "0.02", engine_stall_s=3.0)
    async with (
        workers(PREFILL, wedging, wedging) as running,
        master(*(one.address for one in running)) as running_master,
    ):
        await running_master.ready(1, 2)
        requests = [request(prompt(number), 60) for number in range(8)]
        generations = [await running_master.dispatcher.submit(one) for one in requests]
        readers = [asyncio.create_task(collect(generation)) for generation in generations]
        await running[1].until_decoding()
        (wedged,) = running[1].worker.engine.pids
        os.kill(wedged, signal.SIGSTOP)
        for one, reader in zip(requests, readers, strict=True):
            assert (await reader).ids == {0: fake_output(one.prompt_ids, 60)}
        os.kill(wedged, signal.SIGCONT)
        for worker in running:
            await worker.until_empty()


async def test_aborted_request_leaves_nothing_on_either_worker() -> None:
    async with (
        workers(PREFILL, SLOW_DECODE) as running,
        master(*(one.address for one in running)) as running_master,
    ):
        await running_master.ready(1, 1)
        generation = await running_master.dispatcher.submit(request(prompt(1), 1000))
        await anext(aiter(generation))
        await generation.aclose()
        for worker in running:
            await worker.until_empty()


async def test_deadline_ends_a_request_with_its_name() -> None:
    async with (
        workers(PREFILL, SLOW_DECODE) as running,
        master(*(one.address for one in running)) as running_master,
    ):
        await running_master.ready(1, 1)
        generation = await running_master.dispatcher.submit(request(prompt(1), 1000, deadline_s=0.4))
        with pytest.raises(DeadlineError):
            await collect(generation)
        for worker in running:
            await worker.until_empty()


async def test_without_decode_workers_requests_are_refused_at_once() -> None:
    async with workers(PREFILL) as running, master(running[0].address) as running_master:
        await running_master.until(lambda: bool(running_master.registry.snapshot().workers))
        with pytest.raises(NoWorkerError, match="no prefill worker|no decode worker"):
            await running_master.dispatcher.submit(request(prompt(1), 10))


async def test_model_and_tokenizer_come_from_the_workers() -> None:
    async with (
        workers(partial(RunningWorker, "mixed")) as running,
        master(running[0].address) as running_master,
    ):
        await running_master.ready(1)
        await running_master.until(lambda: bool(running_master.registry.catalog.models()))
        model = running_master.registry.catalog.model("demo")
        assert (model.tokenizer_dir / "tokenizer.json").is_file()
        one = request(prompt(3), 12)
        assert (await collect(await running_master.dispatcher.submit(one))).ids == {0: fake_output(one.prompt_ids, 12)}
