"""The OpenAPI document tells the truth: every path is in it, its examples work, and generated requests never break
us."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from services.pd_master.api.anthropic.answers import MessageError
from services.pd_master.api.errors import Error
from services.pd_master.api.openapi import build_document
from services.pd_master.api.openapi_answers import ANSWERS, EVENTS, MODEL
from services.pd_master.api.openapi_paths import GETS, POSTS
from services.pd_master.api.routes import build_app
from tests.fakes.dispatcher import FakeModel
from tests.unit.api.conftest import Api
from tests.unit.api.test_tools import TOOLS_TEMPLATE
from tests.unit.api.tiny_model import write_tiny_model

DOCUMENT = build_document()
OUTPUT = 'Hm.</think>Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
FUZZED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/generate")
FUZZED = settings(
    max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("documented"), TOOLS_TEMPLATE)


@pytest.fixture
def tools_api(api: Api, folder: Path) -> Api:
    """The server with a model that knows tools and thinks, and writes both."""
    api.models.served = [FakeModel("tools", folder, vocab_size=api.text.vocab_size, max_context_tokens=4096)]
    api.dispatcher.script.output = [api.text.encode(OUTPUT)]
    return api


async def test_every_route_is_in_the_document(api: Api) -> None:
    app = build_app(api.gateway, api.health)
    methods = {(path, method) for path, found in app.paths().items() for method in found}
    documented = {(path, method.upper()) for path, item in DOCUMENT["paths"].items() for method in item}
    assert methods == documented - {("/v1/models/{model}", "GET")}
    assert set(GETS) | set(POSTS) == set(DOCUMENT["paths"])


async def test_its_examples_name_a_model_that_is_served(api: Api) -> None:
    assert (await api.http.get("/openapi.json")).json() == build_document("tiny")
    api.models.served.clear()
    assert (await api.http.get("/openapi.json")).json() == DOCUMENT


def examples() -> list[Any]:
    found = [(path, name) for path, post in POSTS.items() for name in post.examples]
    return [pytest.param(path, name, id=f"{path}-{name}") for path, name in found]


@pytest.mark.parametrize(("path", "name"), examples())
async def test_examples_work_and_their_answers_are_as_documented(tools_api: Api, path: str, name: str) -> None:
    post, example = POSTS[path], {**POSTS[path].examples[name]}
    if example.get("model") == MODEL:
        example["model"] = "tools"
    response = await tools_api.http.post(path, json=example)
    assert response.status_code == 200, response.text
    if response.headers["content-type"] == "application/json":
        assert same(response.content, post.answer)
        return
    lines = [line for line in response.text.split("\n") if line.startswith("data:")]
    events = [line.removeprefix("data:").strip() for line in lines]
    assert post.event is not None
    assert all(same(event, post.event) for event in events if event != "[DONE]")


def same(text: str | bytes, documented: type) -> bool:
    """Whether a type reads all of an answer and leaves nothing of it out."""
    return bool(msgspec.json.decode(text) == msgspec.to_builtins(msgspec.json.decode(text, type=documented)))


def test_every_json_answer_and_stream_has_an_example_of_the_documented_type() -> None:
    answers: dict[str, Any] = {path: get.answer for path, get in GETS.items() if get.answer}
    answers |= {path: post.answer for path, post in POSTS.items()}
    answers["/get_server_info"] = dict
    for path, answer in answers.items():
        assert same(msgspec.json.encode(ANSWERS[path]), answer), path
    for path, post in POSTS.items():
        assert (path in EVENTS) == (post.event is not None)
        assert all(same(msgspec.json.encode(event), post.event) for event in EVENTS.get(path, ()) if post.event), path


@pytest.mark.parametrize("path", EVENTS)
async def test_example_streams_have_the_frames_that_real_ones_have(tools_api: Api, path: str) -> None:
    tools_api.dispatcher.script.output = [tools_api.text.encode("</think>Paris.")]
    body = {**POSTS[path].examples["stream" if "stream" in POSTS[path].examples else "plain"]}
    body.pop("stream_options", None)
    real = await tools_api.http.post(path, json=body | ({"model": "tools"} if "model" in body else {}))
    content = DOCUMENT["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    assert frames(content["examples"]["stream"]["serializedValue"]) == frames(real.text)


def frames(stream: str) -> set[tuple[str, ...]]:
    """Kinds of lines: how each begins, and which keys its JSON has."""
    return {
        (line[: line.index("{") + 1], *sorted(msgspec.json.decode(line[line.index("{") :]))) if "{" in line else (line,)
        for line in stream.split("\n")
    }


@pytest.mark.parametrize("path", POSTS)
def test_errors_have_examples_in_the_shape_of_their_path(path: str) -> None:
    responses = DOCUMENT["paths"][path]["post"]["responses"]
    assert set(responses) == {"200", "400", "401", "404", "413", "429", "500", "503", "504"}
    for status in set(responses) - {"200"}:
        (example,) = responses[status]["content"]["application/json"]["examples"].values()
        assert same(msgspec.json.encode(example["value"]), POSTS[path].error)
        assert ("Retry-After" in responses[status].get("headers", {})) == (status in {"429", "503"})


@pytest.mark.parametrize(("path", "error"), [("/v1/chat/completions", Error), ("/v1/messages", MessageError)])
async def test_errors_are_as_documented(api: Api, path: str, error: type) -> None:
    response = await api.http.post(path, json={})
    assert response.status_code == 400
    assert same(response.content, error)


@pytest.mark.parametrize("path", FUZZED_PATHS)
async def test_generated_bodies_are_answered_or_refused_by_name(api: Api, path: str) -> None:
    """Bodies drawn from the document, sensible and not: never a 5xx, and each refusal in the API's shape."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    seen: list[tuple[int, Any]] = []
    loop = asyncio.get_running_loop()

    def send(body: object) -> None:
        sent = api.http.post(path, json=body if not isinstance(body, bytes) else None, timeout=60)
        response = asyncio.run_coroutine_threadsafe(sent, loop).result(20)
        seen.append((response.status_code, response))

    def explore() -> None:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            strategy = schema[path]["POST"].as_strategy(generation_mode=mode)
            run_examples(strategy, send)

    await asyncio.to_thread(explore)
    assert len(seen) > 4
    for status, response in seen:
        assert status in {200, 400, 404}, response.text
        if status != 200:
            assert "message" in response.json()["error"]


def run_examples(strategy: Any, send: Any) -> None:  # noqa: ANN401 - hypothesis' strategy of schemathesis' cases
    from hypothesis import given

    @FUZZED
    @given(case=strategy)
    def one(case: Any) -> None:  # noqa: ANN401
        if case.body is not schemathesis.core.NOT_SET:
            send(case.body)

    one()
