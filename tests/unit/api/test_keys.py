"""API keys: a file of them, who is let in, and under which name requests are logged."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio

from services.common.config import GatewayConfig
from services.common.errors import OverloadedError
from services.common.ipc import AttemptKey
from services.common.messages import MasterRef
from services.common.options import ConfigError
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.allowance import Limits, RateLimitedError
from services.pd_master.front import Front
from services.pd_master.gateway import Gateway
from services.pd_master.keys import ApiKeys, UnauthenticatedError, current_key
from services.pd_master.live_request import LiveRequest
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import TokenizerService
from services.router.work import WorkKind
from services.worker.protocol.attempt import Attempt
from sluice.v1 import gateway_pb2, gateway_pb2_grpc
from tests.fakes.dispatcher import FakeDispatcher, FakeGeneration, FakeModel, FakeModels

KEY = "sk-0123456789abcdef"
LIMITED_KEY = KEY + "2"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a secret"}]}


def write(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    return path


def test_key_is_taken_from_either_header(tmp_path: Path) -> None:
    keys = ApiKeys.load(write(tmp_path, f"# who may\n\nalice {KEY}\nbob {KEY}2\n"))
    keys.admit(f"Bearer {KEY}", "")
    assert current_key.get() == "alice"
    keys.admit("", f"{KEY}2")
    assert current_key.get() == "bob"


@pytest.mark.parametrize(
    ("authorization", "api_key"), [("", ""), ("Bearer ", ""), (f"Basic {KEY}", ""), ("", KEY[:-1])]
)
def test_other_keys_are_refused(authorization: str, api_key: str) -> None:
    with pytest.raises(UnauthenticatedError):
        ApiKeys({"alice": KEY}).admit(authorization, api_key)


@pytest.mark.parametrize(
    "text", ["", "# none\n", "alice\n", "alice short\n", f"a {KEY}\na {KEY}2\n", f"a {KEY} more\n"]
)
def test_file_that_makes_no_sense_ends_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--api-keys-file"):
        ApiKeys.load(write(tmp_path, text))


def test_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-keys-file"):
        ApiKeys.load(tmp_path / "missing")


@pytest_asyncio.fixture(loop_scope="session")
async def front(tiny_model: Path, tmp_path: Path) -> AsyncIterator[Front]:
    keys = str(write(tmp_path, f"alice {KEY}\nbob {LIMITED_KEY} requests_per_minute=2 tokens_per_minute=9999\n"))
    config = GatewayConfig(host="127.0.0.1", http_port=0, grpc_port=0, drain_s=1, api_keys_file=keys)
    dispatcher = FakeDispatcher(ModelText(tiny_model).vocabulary)
    front = Front(config, FakeModels(FakeModel("tiny", tiny_model)), dispatcher, GatewayMetrics())
    stop = asyncio.Event()
    served = asyncio.create_task(front.serve(stop))
    yield front
    stop.set()
    await served


async def test_http_needs_a_key_but_for_probes(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{front.http_port}") as client:
        refused = await client.post("/v1/chat/completions", json=CHAT)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert (await client.post("/v1/messages", json={})).json()["error"]["type"] == "authentication_error"
        for path in ("/health", "/readiness", "/metrics"):
            assert (await client.get(path)).status_code == 200
        allowed = await client.post("/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {KEY}"})
        assert allowed.status_code == 200
    (line,) = [record.getMessage() for record in caplog.records if "prompt_tokens=" in record.getMessage()]
    assert "key=alice" in line
    assert "finish=stop" in line
    assert "secret" not in line


def test_workers_are_told_the_keys_name_to_predict_lengths_by() -> None:
    request = Request("r", "m", [1], SamplingParams(), StopParams(5))
    token = current_key.set("alice")
    live = LiveRequest(request, GatewayMetrics(), api="test", arrived=0.0, on_end=lambda _: None)
    current_key.reset(token)
    assert live.request.caller == "alice"
    attempt = Attempt(AttemptKey("r", 1), MasterRef("m", "1"), live.request, (0,), [], 0.0)
    assert attempt.work(1, WorkKind.RESERVATION).evidence_key == "alice"


async def test_limits_of_a_key_answer_429_with_the_time_to_come_back(front: Front) -> None:
    headers = {"Authorization": f"Bearer {LIMITED_KEY}"}
    async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{front.http_port}", headers=headers) as client:
        answers = [await client.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(answers[-1].headers["retry-after"]) <= 30
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_call_counts_once_against_its_key_however_many_prompts_it_has(front: Front) -> None:
    headers = {"Authorization": f"Bearer {LIMITED_KEY}"}
    async with httpx.AsyncClient(timeout=60, base_url=f"http://127.0.0.1:{front.http_port}", headers=headers) as client:
        body = {"model": "tiny", "prompt": ["a", "b", "c", "d"]}
        answers = [await client.post("/v1/completions", json=body) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_a_call_that_finds_no_worker_costs_its_key_nothing_and_leaves_nothing_running(tiny_model: Path) -> None:
    dispatcher = FakeDispatcher(ModelText(tiny_model).vocabulary)
    limits = {"bob": Limits(requests_per_minute=1, tokens_per_minute=10)}
    gateway = Gateway(GatewayConfig(), FakeModels(), dispatcher, TokenizerService(), GatewayMetrics(), limits)
    requests = [Request(name, "tiny", [1] * 5, SamplingParams(), StopParams(5)) for name in ("first", "second")]
    token = current_key.set("bob")
    submit = dispatcher.submit

    async def full_for_the_second(request: Request) -> FakeGeneration:
        if request.request_id == "second":
            raise OverloadedError("full")
        return await submit(request)

    dispatcher.submit = full_for_the_second  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(OverloadedError, match="full"):
            await gateway.start_all(requests, api="test", arrived=0.0)
    assert gateway.num_active == 0
    assert all(generation.closed.is_set() for generation in dispatcher.generations)
    dispatcher.submit = submit  # type: ignore[method-assign]
    lives = await gateway.start_all(requests, api="test", arrived=0.0)
    assert gateway.num_active == 2
    with pytest.raises(RateLimitedError):
        await gateway.start(requests[0], api="test", arrived=0.0)
    for live in lives:
        await live.aclose()
    current_key.reset(token)


async def test_a_call_with_more_prompts_than_places_starts_none_of_them(tiny_model: Path) -> None:
    dispatcher = FakeDispatcher(ModelText(tiny_model).vocabulary)
    config = GatewayConfig(max_queue=2)
    gateway = Gateway(config, FakeModels(), dispatcher, TokenizerService(), GatewayMetrics())
    requests = [Request(name, "tiny", [1], SamplingParams(), StopParams(5)) for name in ("a", "b", "c")]
    with pytest.raises(OverloadedError):
        await gateway.start_all(requests, api="test", arrived=0.0)
    assert dispatcher.requests == []


@pytest.mark.parametrize(
    "limit", ["requests_per_minute", "requests=3", "tokens_per_minute=0", "tokens_per_minute=x", "tokens_per_minute=²"]
)
def test_a_limit_that_makes_no_sense_is_named(tmp_path: Path, limit: str) -> None:
    with pytest.raises(ConfigError, match="line 1.*requests_per_minute=N"):
        ApiKeys.load(write(tmp_path, f"alice {KEY} {limit}\n"))


async def test_grpc_needs_a_key(front: Front) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        request = gateway_pb2.ListModelsRequest()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.ListModels(request)
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        models = await stub.ListModels(request, metadata=(("authorization", f"Bearer {KEY}"),))
        assert [model.name for model in models.models] == ["tiny"]
