"""A gateway process between real clients and workers whose engines are fakes, so that every answer is known."""

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import httpx
import openai
import pytest
import pytest_asyncio

from services.common.request import StopParams, TextParams
from services.common.text import TextStream
from services.pd_master.model_text import ModelText
from sluice.v1 import gateway_pb2, gateway_pb2_grpc
from tests.fakes.tokens import fake_output
from tests.fakes.workers import DEMO
from tests.integration.api.gateway import (
    DECODE,
    PREFILL,
    SLOW_DECODE,
    WITHIN_S,
    GatewayProcess,
    Served,
    gateway,
    served,
)

pytestmark = [pytest.mark.demo_model, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[3]
RECONCILED_S = 1.0
"""What was not aborted is ended by reconciliation, after a second at the earliest."""
TRIES = 6
"""A machine that stands still makes an abort late; none makes all of them late."""
ASK = [{"role": "user", "content": "Tell me of the sea."}]


@functools.cache
def demo_text() -> ModelText:
    return ModelText(DEMO)


def expected(messages: list[dict[str, str]], num_tokens: int) -> str:
    """The text that the fake engines make of a chat."""
    text = demo_text()
    prompt_ids = text.encode(text.template().render(messages), add_special_tokens=False)
    stream = TextStream(text.vocabulary, StopParams(num_tokens), TextParams())
    return stream.push(fake_output(prompt_ids, num_tokens)) + stream.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Served]:
    """For tests that leave everything as it was."""
    async with served(PREFILL, DECODE) as pair:
        yield pair


async def test_streams_carry_what_the_engines_make(shared: Served) -> None:
    gate, running = shared

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": f"Question {number}"}]
        stream = await gate.openai.chat.completions.create(
            model="demo", messages=messages, stream=True, max_tokens=40, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == expected(messages, 40)
        assert chunks[-1].usage.completion_tokens == 40

    await asyncio.gather(*(one(number) for number in range(32)))
    for worker in running:
        await worker.until_empty()


async def test_client_that_leaves_frees_both_workers_within_a_second() -> None:
    async with served(PREFILL, SLOW_DECODE) as (gate, running):
        took_s: list[float] = []
        while not took_s or took_s[-1] >= RECONCILED_S:
            assert len(took_s) < TRIES, took_s
            stream = await gate.openai.chat.completions.create(model="demo", messages=ASK, stream=True, max_tokens=4000)
            async for _ in stream:
                break
            started = time.monotonic()
            await stream.close()
            for worker in running:
                await worker.until_empty()
            took_s.append(time.monotonic() - started)


async def test_without_a_role_it_is_503_at_once() -> None:
    async with served(PREFILL, DECODE) as (gate, running):
        await running[1].stop()
        started = time.monotonic()
        response = await gate.chat("anyone?", max_tokens=4)
        while response.status_code == 200:  # until the gateway has heard that it left
            response = await gate.chat("anyone?", max_tokens=4)
            assert time.monotonic() - started < WITHIN_S
        started = time.monotonic()
        response = await gate.chat("anyone?", max_tokens=4)
        assert response.status_code == 503
        assert time.monotonic() - started < 20, "a queue budget is three times as long"
        assert int(response.headers["retry-after"]) >= 1
        assert (await gate.http.get("/readiness")).status_code == 200


async def test_gateway_that_knows_no_worker_is_ready_and_answers_503() -> None:
    async with gateway() as gate:
        assert (await gate.chat("anyone?")).status_code == 503
        assert (await gate.http.get("/v1/models")).json()["data"] == []


async def test_beyond_its_limit_it_answers_429_with_retry_after() -> None:
    async with served(PREFILL, SLOW_DECODE, options=("--max-queue", "1")) as (gate, _):
        stream = await gate.openai.chat.completions.create(model="demo", messages=ASK, stream=True, max_tokens=500)
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError) as raised:
            await gate.openai.chat.completions.create(model="demo", messages=ASK)
        assert int(raised.value.response.headers["retry-after"]) >= 1
        await stream.close()


async def test_deadline_is_504_and_leaves_nothing() -> None:
    async with served(PREFILL, SLOW_DECODE, options=("--deadline-s", "1.5")) as (gate, running):
        response = await gate.chat("long", max_tokens=4000)
        assert response.status_code == 504
        for worker in running:
            await worker.until_empty()


async def test_sigterm_lets_streams_end_and_exits_with_0() -> None:
    async with served(PREFILL, SLOW_DECODE) as (gate, _):
        stream = await gate.openai.chat.completions.create(model="demo", messages=ASK, stream=True, max_tokens=40)
        chunks = aiter(stream)
        await anext(chunks)
        stopped = asyncio.create_task(gate.stop())
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        assert text == expected(ASK, 40)
        assert await stopped == 0
        with pytest.raises(httpx.ConnectError):
            await gate.http.get("/health")


async def test_grpc_generates_what_http_does(shared: Served) -> None:
    gate, running = shared
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gate.grpc_port}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        turns = [gateway_pb2.ChatMessage(role="user", content=ASK[0]["content"])]
        request = gateway_pb2.ChatRequest(model="demo", messages=turns)
        request.stop.max_new_tokens = 30
        messages = [message async for message in stub.Chat(request)]
        text = "".join(delta.text for message in messages for delta in message.deltas)
        assert text == expected(ASK, 30)
        assert messages[-1].usage.completion_tokens == 30
        info = await stub.GetServerInfo(gateway_pb2.GetServerInfoRequest())
        assert sorted(worker.role for worker in info.workers) == ["decode", "prefill"]
    for worker in running:
        await worker.until_empty()


async def test_the_example_client_prints_a_chat(shared: Served) -> None:
    gate, running = shared
    command = [sys.executable, "examples/grpc_client.py", f"127.0.0.1:{gate.grpc_port}", ASK[0]["content"]]
    client = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=os.environ | {"PYTHONPATH": "gen"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await client.communicate()
    assert client.returncode == 0, err.decode()
    assert out.decode().removesuffix("\n") == expected(ASK, 64)
    assert err.decode() == "models: demo\n"
    for worker in running:
        await worker.until_empty()


async def test_every_series_of_the_gateway_moves(shared: Served) -> None:
    gate, _ = shared
    for _ in range(2):  # its prefix is cached the second time, and long enough for a block of the account
        await gate.chat("hello " * 80, max_tokens=10)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gate.grpc_port}") as channel:
        await gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(gateway_pb2.ListModelsRequest())
    stream = await gate.openai.chat.completions.create(model="demo", messages=ASK, stream=True, max_tokens=4000)
    await anext(aiter(stream))
    moved, declared = await moved_of_declared(gate)
    await stream.close()
    assert declared - moved == set()
    assert "sluice_gateway_stage_seconds_count" in moved


async def moved_of_declared(gate: GatewayProcess) -> tuple[set[str], set[str]]:
    """Series that were not zero at some time, and all of them. What workers tell comes with their heartbeats."""
    moved: set[str] = set()
    deadline = time.monotonic() + 60
    while True:
        values = totals((await gate.http.get("/metrics")).text)
        moved |= {name for name, value in values.items() if value}
        if moved >= values.keys() or time.monotonic() > deadline:
            return moved, set(values)
        await asyncio.sleep(0.05)


def totals(exposition: str) -> dict[str, float]:
    """Each series' sum over its labels."""
    values: dict[str, float] = {}
    for sample in exposition.splitlines():
        if sample.startswith("sluice_") and "_created" not in sample and "_bucket" not in sample:
            name, value = sample.rsplit(" ", 1)
            name = name.partition("{")[0]
            values[name] = values.get(name, 0) + float(value)
    return values
