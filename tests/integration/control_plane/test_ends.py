"""Every early end, in every state, leaves nothing: no job, no reservation, no slot, no attempt."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.common.messages import Joined, Placed, PlacementRefused, Prefilling, Queued
from services.common.request import Request
from tests.fakes.master import FakeMaster, make_request, master
from tests.fakes.workers import RunningWorker, workers

pytestmark = pytest.mark.demo_model

LONG = list(range(10, 2010))
WITHIN_S = 20.0
"""Less than any lease or push takes: it is the abort that frees. Nobody reconciles here."""
Reached = Callable[[FakeMaster, Request], Awaitable[object]]


async def queued(m: FakeMaster, request: Request) -> object:
    return await m.event(request, Queued)


async def prefilling(m: FakeMaster, request: Request) -> object:
    return await m.event(request, Prefilling)


async def transferring(m: FakeMaster, request: Request) -> object:
    await m.event(request, Placed)
    await m.until(lambda: m.seen[request.request_id].tokens)
    return None


async def decoding(m: FakeMaster, request: Request) -> object:
    await m.event(request, Joined)
    await m.until(lambda: len(m.seen[request.request_id].tokens.get(0, [])) > 5)
    return None


# In each state the engines are slow in just the part that the state is about.
STATES: dict[str, tuple[Reached, list[str], list[str]]] = {
    "queued": (queued, ["--step-s", "0.05", "--num-slots", "2500"], []),
    "prefilling": (prefilling, ["--step-s", "0.3"], []),
    "transferring": (transferring, ["--push-s", "30"], []),
    "decoding": (decoding, [], ["--step-s", "0.01"]),
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> tuple[Reached, list[str], list[str]]:
    return STATES[request.param]


async def test_abort_in_each_state_leaves_nothing(state: tuple[Reached, list[str], list[str]]) -> None:
    reached, prefill_options, decode_options = state
    start = (lambda: RunningWorker("prefill", *prefill_options), lambda: RunningWorker("decode", *decode_options))
    async with workers(*start) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        requests = [make_request([*LONG, index], 5000) for index in range(3)]
        keys = [m.submit(request, p.address, d.address) for request in requests]
        await reached(m, requests[-1] if reached is queued else requests[0])
        for key in keys:
            m.abort(key)
        await asyncio.wait_for(asyncio.gather(p.until_empty(), d.until_empty()), WITHIN_S)


async def test_a_lost_decode_worker_in_each_state_leaves_nothing(state: tuple[Reached, list[str], list[str]]) -> None:
    reached, prefill_options, decode_options = state
    start = (lambda: RunningWorker("prefill", *prefill_options), lambda: RunningWorker("decode", *decode_options))
    async with workers(*start) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request(LONG, 5000)
        key = m.submit(request, p.address, d.address)
        await reached(m, request)
        await d.kill()
        if reached in (prefilling, transferring):
            await m.event(request, PlacementRefused)
        m.abort(key)
        await p.until_empty()


async def test_a_lost_prefill_worker_in_each_state_leaves_nothing(state: tuple[Reached, list[str], list[str]]) -> None:
    reached, prefill_options, decode_options = state
    start = (lambda: RunningWorker("prefill", *prefill_options), lambda: RunningWorker("decode", *decode_options))
    async with workers(*start) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request(LONG, 200)
        key = m.submit(request, p.address, d.address)
        await reached(m, request)
        await p.kill()
        if reached is decoding:
            await m.finished(request)  # what has joined is the decode worker's alone
        m.abort(key)
        await d.until_empty()
