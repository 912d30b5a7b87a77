"""Pools too small for what is asked: everything ends right, only later."""

import asyncio

import pytest

from services.common.messages import PlacementRefused, Preempted, RefusalReason, Refused
from tests.fakes.master import make_request, master
from tests.fakes.tokens import fake_output
from tests.fakes.workers import RunningWorker, workers

pytestmark = pytest.mark.demo_model


def prompt(length: int, salt: int) -> list[int]:
    return [salt, *range(100, 99 + length)]


async def test_preempted_sequences_resume_with_the_same_tokens() -> None:
    small = lambda: RunningWorker("decode", "--num-slots", "700", prior_output_tokens=1)  # noqa: E731
    async with workers(lambda: RunningWorker("prefill"), small) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        requests = [make_request(prompt(50, salt), 250) for salt in range(6)]
        for request in requests:
            m.submit(request, p.address, d.address)
        for request in requests:
            seen = await m.finished(request)
            assert seen.tokens[0] == fake_output(request.prompt_ids, 250)
        assert any(isinstance(event, Preempted) for seen in m.seen.values() for event in seen.events)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_a_full_prefill_pool_makes_prompts_wait() -> None:
    small = lambda: RunningWorker("prefill", "--num-slots", "1000")  # noqa: E731
    async with workers(small, lambda: RunningWorker("decode")) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        requests = [make_request(prompt(400, salt), 5) for salt in range(12)]
        for request in requests:
            m.submit(request, p.address, d.address)
        for request in requests:
            assert (await m.finished(request)).tokens[0] == fake_output(request.prompt_ids, 5)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_a_full_queue_refuses_at_once() -> None:
    slow = lambda: RunningWorker("prefill", "--step-s", "0.2", "--num-slots", "500", max_queue=2)  # noqa: E731
    async with workers(slow, lambda: RunningWorker("decode")) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        requests = [make_request(prompt(400, salt), 5) for salt in range(6)]
        for request in requests:
            m.submit(request, p.address, d.address)
        refused = await m.event(requests[-1], Refused)
        assert refused.reason is RefusalReason.QUEUE_FULL
        assert refused.retry_after_s is not None
        for key in list(m.live):
            m.abort(key)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_what_never_fits_is_refused_for_good() -> None:
    small = lambda: RunningWorker("decode", "--num-slots", "300")  # noqa: E731
    async with workers(lambda: RunningWorker("prefill"), small) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request(prompt(400, 1), 5)
        key = m.submit(request, p.address, d.address)
        refused = await m.event(request, PlacementRefused)
        assert refused.reason is RefusalReason.TOO_LARGE
        m.abort(key)
        await asyncio.gather(p.until_empty(), d.until_empty())
