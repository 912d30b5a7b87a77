"""Prefix caches' own accounts, over real sessions: masters learn them, late ones and ones that lost something too."""

from functools import partial

import pytest

from services.common.messages import CacheChanges
from services.common.prefix_blocks import BLOCK_TOKENS
from tests.fakes.workers import RunningWorker, workers
from tests.integration.master import RunningMaster, collect, master, prompt, request

pytestmark = pytest.mark.demo_model

PREFILL = partial(RunningWorker, "prefill")
DECODE = partial(RunningWorker, "decode")
PROMPT = prompt(1, 3 * BLOCK_TOKENS + 10)


def holders(one: RunningMaster) -> dict[str, int]:
    """Worker -> tokens of PROMPT that the master believes it holds."""
    return {worker.worker_id: tokens for worker, tokens in one.registry.prefixes.cached_tokens(PROMPT).items()}


async def test_a_repeated_prompt_goes_to_the_worker_that_has_it() -> None:
    async with workers(PREFILL, PREFILL, DECODE) as running, master(*(one.address for one in running)) as m:
        await m.ready(2, 1)
        await collect(await m.dispatcher.submit(request(PROMPT, 2)))
        await m.until(lambda: bool(holders(m)))
        assert list(holders(m).values()) == [3 * BLOCK_TOKENS]
        for _ in range(8):
            generation = await m.dispatcher.submit(request(PROMPT, 2))
            await collect(generation)
            assert generation.cached_tokens == len(PROMPT) - 1
        assert len(holders(m)) == 1


async def test_a_master_that_comes_later_is_told_all() -> None:
    async with workers(PREFILL, DECODE) as running:
        addresses = [one.address for one in running]
        async with master(*addresses) as early:
            await early.ready(1, 1)
            await collect(await early.dispatcher.submit(request(PROMPT, 2)))
        async with master(*addresses, master_id="late") as late:
            await late.until(lambda: list(holders(late).values()) == [3 * BLOCK_TOKENS])


async def test_a_master_that_lost_changes_asks_and_is_told_all_again() -> None:
    async with workers(PREFILL, DECODE) as running, master(*(one.address for one in running)) as m:
        await m.ready(1, 1)
        await collect(await m.dispatcher.submit(request(PROMPT, 2)))
        await m.until(lambda: bool(holders(m)))
        (worker,) = m.registry.prefixes.cached_tokens(PROMPT)
        m.registry.link_said(worker, CacheChanges(1, 99, [], []))
        assert holders(m) == {}
        await m.until(lambda: list(holders(m).values()) == [3 * BLOCK_TOKENS])
