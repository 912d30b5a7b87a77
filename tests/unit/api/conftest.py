"""A real HTTP server on loopback around the real API, with a scripted dispatcher behind it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from services.common.config import GatewayConfig
from services.pd_master.api.health import HealthEndpoint
from services.pd_master.api.routes import build_app
from services.pd_master.gateway import Gateway
from services.pd_master.http_server import HttpServer
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tokenizer import TokenizerService
from tests.fakes.dispatcher import FakeDispatcher, FakeModel, FakeModels
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


@pytest.fixture
def config() -> GatewayConfig:
    """Defaults; a test module may override."""
    return GatewayConfig(max_body_bytes=100_000, max_choices=4, client_stall_s=1.0)


@pytest.fixture
async def api(tiny_model: Path, config: GatewayConfig) -> AsyncIterator[Api]:
    text = ModelText(tiny_model)
    models = FakeModels(FakeModel("tiny", tiny_model, vocab_size=text.vocab_size))
    dispatcher = FakeDispatcher(text.vocabulary)
    metrics = GatewayMetrics()
    tokenizers = TokenizerService()
    gateway = Gateway(config, models, dispatcher, tokenizers, metrics)
    health = HealthEndpoint(metrics)
    server = HttpServer(build_app(gateway, health), "127.0.0.1", 0, drain_s=1)
    serving = asyncio.create_task(server.serve())
    await server.started()
    url = f"http://127.0.0.1:{server.port}"
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    async with httpx.AsyncClient(base_url=url, timeout=10) as http, client:
        yield Api(url, http, client, models, dispatcher, gateway, health, text)
    server.stop()
    await serving
    tokenizers.close()
