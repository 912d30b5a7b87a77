"""The official clients against a whole Sluice: one cluster for all tests here, or any server at SLUICE_URL.

    SLUICE_URL=http://127.0.0.1:8000 make test ARGS=tests/integration/clients

runs them against a `make run`. What its model's chat template does not know (tools, thoughts) is skipped there.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anthropic
import openai
import pytest

from services.cli.demo_model import NAME
from tests.integration.cluster import Cluster
from tests.integration.tools_template import with_tools

URL = os.environ.get("SLUICE_URL", "").rstrip("/")
TIMEOUT_S = 240.0

THINK = {"chat_template_kwargs": {"enable_thinking": True}}
DO_NOT_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
GREEDY = {"temperature": 0}
"""For Anthropic's client, which has no argument for it; the API has."""
ASK = [{"role": "user", "content": "What is the capital of France?"}]

Client: TypeAlias = Any
"""A client of the field; its answers are checked at run time, not by their types."""


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the clients go. Our own cluster serves the demo model under a template that knows tools and thoughts."""
    if URL:
        yield URL
        return
    folder, logs = tmp_path_factory.mktemp("demo-with-tools"), tmp_path_factory.mktemp("client-logs")
    model_dir: Path = request.getfixturevalue("model_dir")
    with_tools(model_dir, folder)
    with Cluster(folder, logs, worker_options=["--dtype", "float32", "--served-model-name", NAME]) as cluster:
        yield cluster.url


@pytest.fixture(scope="session")
def gpt(url: str) -> Iterator[Client]:
    """OpenAI's client, told nothing but the address."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="session")
def claude(url: str) -> Iterator[Client]:
    """Anthropic's client, told nothing but the address."""
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture(scope="session")
def model(gpt: Client) -> str:
    """The model that is served."""
    name: str = gpt.models.list().data[0].id
    return name


@pytest.fixture(scope="session")
def demo(model: str) -> str:
    """The model, where it is the demo model, whose greedy answers are known."""
    if model != NAME:
        pytest.skip(f"{model} is not the demo model")
    return model


@pytest.fixture(scope="session")
def tools_model(gpt: Client, model: str) -> str:
    """The model, where its template knows tools."""
    tool = {"type": "function", "function": {"name": "probe"}}
    try:
        gpt.chat.completions.create(model=model, messages=ASK, tools=[tool], max_tokens=1)
    except openai.BadRequestError as error:
        pytest.skip(error.message)
    return model


@pytest.fixture(scope="session")
def thinking_model(gpt: Client, model: str) -> str:
    """The model, where its template knows thoughts."""
    answer = gpt.chat.completions.create(model=model, messages=ASK, max_tokens=2, extra_body=THINK)
    if not hasattr(answer.choices[0].message, "reasoning_content"):
        pytest.skip(f"the template of {model} knows no thoughts")
    return model
