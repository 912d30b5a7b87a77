"""The front from its start to the end of its drain."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from services.common.config import GatewayConfig
from services.common.errors import RequestAbortedError
from services.pd_master.front import Front
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from tests.fakes.dispatcher import FakeDispatcher, FakeModel, FakeModels

WITHIN_S = 60.0
"""Enough on a slow machine, and half of a drain."""
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


class Running:
    """A front that serves, and how to stop it."""

    def __init__(self, folder: Path, drain_s: float) -> None:
        text = ModelText(folder)
        config = GatewayConfig(host="127.0.0.1", http_port=0, grpc_port=0, drain_s=drain_s)
        self.dispatcher = FakeDispatcher(text.vocabulary)
        self.dispatcher.script.output = [text.encode("Hello world")]
        self.dispatcher.script.hang_after = 1
        models = FakeModels(FakeModel("tiny", folder))
        self.front = Front(config, models, self.dispatcher, GatewayMetrics())
        self.stop = asyncio.Event()
        self.served = asyncio.create_task(self.front.serve(self.stop))
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.front.http_port}", timeout=WITHIN_S)

    async def stream(self) -> tuple[httpx.Response, AsyncIterator[str]]:
        """A chat that has its first token and waits for more."""
        request = self.http.build_request("POST", "/v1/chat/completions", json=CHAT)
        response = await self.http.send(request, stream=True)
        lines = response.aiter_lines()
        await anext(lines)
        return response, lines


@pytest_asyncio.fixture(loop_scope="session")
async def running(tiny_model: Path) -> AsyncIterator[Running]:
    running = Running(tiny_model, drain_s=2 * WITHIN_S)
    yield running
    running.stop.set()
    await running.served
    await running.http.aclose()


async def test_streams_end_whole_before_the_front_stops(running: Running) -> None:
    _, lines = await running.stream()
    running.stop.set()
    await asyncio.wait_for(_refused(running), WITHIN_S)
    assert not running.served.done()
    running.dispatcher.generations[0].go_on.set()
    assert [line async for line in lines if line][-1] == "data: [DONE]"
    await asyncio.wait_for(running.served, WITHIN_S)


async def test_what_outlasts_the_drain_gets_an_error_event(tiny_model: Path) -> None:
    running = Running(tiny_model, drain_s=0.1)
    _, lines = await running.stream()
    running.stop.set()
    last = [line async for line in lines if line][-1]
    assert "the server is shutting down" in last
    await asyncio.wait_for(running.served, WITHIN_S)
    await running.http.aclose()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_without_output_that_outlasts_the_drain_may_go_elsewhere(
    tiny_model: Path, stream: bool
) -> None:
    running = Running(tiny_model, drain_s=0.1)
    running.dispatcher.script.hang_after = 0
    asking = asyncio.create_task(running.http.post("/v1/chat/completions", json={**CHAT, "stream": stream}))
    while not running.dispatcher.generations:  # noqa: ASYNC110 - what the front does with it is its own matter
        await asyncio.sleep(0.01)
    running.stop.set()
    answer = await asyncio.wait_for(asking, WITHIN_S)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "shutting_down"
    await asyncio.wait_for(running.served, WITHIN_S)
    await running.http.aclose()


async def test_a_request_that_others_end_is_answered(running: Running) -> None:
    running.dispatcher.script.fail_after, running.dispatcher.script.failure = 0, RequestAbortedError("by an operator")
    answer = await running.http.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["message"]) == (499, "by an operator")


async def test_idle_front_stops_at_once(running: Running) -> None:
    assert (await running.http.get("/readiness")).status_code == 200
    port = running.front.http_port
    running.stop.set()
    await asyncio.wait_for(running.served, WITHIN_S)
    assert running.front.http_port == port, "whoever asks for it while the front stops still learns it"


async def _refused(running: Running) -> None:
    """Returns when the front accepts no new connections."""
    while True:
        try:
            async with httpx.AsyncClient(timeout=WITHIN_S) as client:
                await client.get(f"http://127.0.0.1:{running.front.http_port}/health")
        except httpx.ConnectError:
            return
        except httpx.TransportError:
            continue  # it was in the listener's queue when that closed
