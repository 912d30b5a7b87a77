"""A real HTTP server on loopback around the real API, with a scripted dispatcher behind it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from services.common.config import GatewayConfig
from services.pd_master.api.health import HealthEndpoint
from services.pd_master.api.routes import build_app
from services.pd_master.gateway import Gateway
from services.pd_master.http_server import Address, HttpServer
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import TokenizerService
from tests.fakes.dispatcher import FakeDispatcher, FakeModel, FakeModels, Script
from tests.unit.api.tiny_model import write_tiny_model


@dataclasses.dataclass
class Api:
    """The server under test."""

    url: str
    http: httpx.AsyncClient
    openai: Any
    """`openai.AsyncOpenAI`; answers are checked at run time, not by their types."""
    models: FakeModels
    dispatcher: FakeDispatcher
    gateway: Gateway
    health: HealthEndpoint
    text: ModelText


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer with ChatML marks and template."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def config() -> GatewayConfig:
    """Limits small enough to reach."""
    return GatewayConfig(max_body_bytes=100_000, max_choices=4, client_stall_s=1.0)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def server(tiny_model: Path, config: GatewayConfig) -> AsyncIterator[Api]:
    """One server for all tests of this folder; `api` gives it to each of them in its first state."""
    text = ModelText(tiny_model)
    dispatcher = FakeDispatcher(text.vocabulary)
    metrics = GatewayMetrics()
    tokenizers = TokenizerService()
    models = FakeModels()
    gateway = Gateway(config, models, dispatcher, tokenizers, metrics)
    health = HealthEndpoint(metrics)
    http_server = HttpServer(
        build_app(gateway, health), Address("127.0.0.1", 0), drain_s=1, stall_s=config.client_stall_s
    )
    serving = asyncio.create_task(http_server.serve())
    await http_server.started()
    url = f"http://127.0.0.1:{http_server.port}"
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http, client:
        yield Api(url, http, client, models, dispatcher, gateway, health, text)
    http_server.stop()
    await serving
    tokenizers.close()


@pytest.fixture
def api(server: Api, tiny_model: Path) -> Api:
    """The server with one model, a default script and no memory of earlier tests."""
    server.models.served = [FakeModel("tiny", tiny_model, vocab_size=server.text.vocab_size)]
    server.dispatcher.script = Script()
    server.dispatcher.requests.clear()
    server.dispatcher.generations.clear()
    while not server.dispatcher.submitted.empty():
        server.dispatcher.submitted.get_nowait()
    return server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here share the server's event loop."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
