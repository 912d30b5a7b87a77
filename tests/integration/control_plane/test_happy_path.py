"""Requests through real workers with fake engines: what comes out is what the fake engine's function says."""

import asyncio

import pytest
from tokenizers import Tokenizer

from services.common.messages import Joined, Placed, Prefilling, Queued
from services.common.request import FinishReason
from tests.fakes.master import Seen, make_request, master
from tests.fakes.tokens import fake_output
from tests.fakes.workers import DEMO, RunningWorker, workers

pytestmark = pytest.mark.demo_model


def prefill() -> RunningWorker:
    return RunningWorker("prefill")


def decode() -> RunningWorker:
    return RunningWorker("decode")


async def test_a_request_goes_through_prefill_and_decode_and_leaves_nothing() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 20)
        m.submit(request, p.address, d.address)
        seen = await m.finished(request)
        assert seen.tokens[0] == fake_output([5, 6, 7], 20)
        finish = seen.finished[0].finish
        assert finish is not None
        assert (finish.reason, finish.num_output_tokens) == (FinishReason.LENGTH, 20)
        kinds = [type(event) for event in seen.events]
        assert [kind for kind in kinds if kind is not Joined] == [Queued, Prefilling, Placed]
        assert Joined in kinds
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_many_requests_at_once_over_two_pairs() -> None:
    async with workers(prefill, prefill, decode, decode) as (p1, p2, d1, d2):
        addresses = [one.address for one in (p1, p2, d1, d2)]
        async with master(*addresses) as m:
            for p in (p1, p2):
                await m.pair(p.address, d1.address, d2.address)
            requests = [make_request([9, index, index + 1], 5 + index % 40) for index in range(100)]
            for index, request in enumerate(requests):
                m.submit(request, (p1, p2)[index % 2].address, (d1, d2)[index // 2 % 2].address)
            for request in requests:
                seen = await m.finished(request)
                assert seen.tokens[0] == fake_output(request.prompt_ids, request.stop.max_new_tokens)
            await asyncio.gather(*(one.until_empty() for one in (p1, p2, d1, d2)))


async def test_every_choice_is_a_sequence_of_its_own() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 9, n=3)
        m.submit(request, p.address, d.address)
        seen = await m.finished(request)
        assert seen.tokens == {choice: fake_output([5, 6, 7], 9, choice) for choice in range(3)}
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_one_token_never_reaches_the_decode_worker() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 1)
        m.submit(request, p.address, d.address)
        seen = await m.finished(request)
        assert seen.tokens[0] == fake_output([5, 6, 7], 1)
        assert not any(isinstance(event, Joined) for event in seen.events)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_a_second_attempt_continues_the_first() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 12)
        whole = fake_output([5, 6, 7], 12)
        m.seen[request.request_id] = Seen(tokens={0: whole[:5]})
        m.submit(request, p.address, d.address, attempt=2, output_ids=whole[:5])
        seen = await m.finished(request)
        assert seen.tokens[0] == whole
        await asyncio.gather(p.until_empty(), d.until_empty())


@pytest.mark.parametrize("at", [0, 1, 7])
async def test_a_stop_string_ends_the_sequence_on_whichever_worker_sees_it(at: int) -> None:
    whole = fake_output([5, 6, 7], 30)
    text = Tokenizer.from_file(str(DEMO / "tokenizer.json")).decode
    stop = text(whole[: at + 1])[len(text(whole[:at])) :]
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 30, stop)
        m.submit(request, p.address, d.address)
        seen = await m.finished(request)
        finish = seen.finished[0].finish
        assert finish is not None
        assert (finish.reason, finish.stop_reason) == (FinishReason.STOP, stop)
        assert seen.tokens[0] == whole[: finish.num_output_tokens]
        assert seen.text[0] == text(whole).partition(stop)[0]
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_a_mixed_worker_takes_both_halves() -> None:
    async with workers(lambda: RunningWorker("mixed")) as (w,), master(w.address) as m:
        requests = [make_request([5, index], 10) for index in range(20)]
        for request in requests:
            m.submit(request, w.address, None)
        for request in requests:
            seen = await m.finished(request)
            assert seen.tokens[0] == fake_output(request.prompt_ids, 10)
        await w.until_empty()
