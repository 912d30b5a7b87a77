"""What clients of the field take for granted of an HTTP API: methods, paths, ids, and fields that change nothing."""

import logging
from typing import Any

import pytest

from services.common.errors import InvalidRequestError, SluiceError, WorkerFailedError
from tests.unit.api.conftest import Api

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
POSTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "Hello"},
    "/v1/responses": {"model": "tiny", "input": "Hello"},
    "/v1/messages": {**CHAT, "max_tokens": 4},
    "/generate": {"inputs": "Hello", "parameters": {"max_new_tokens": 4}},
}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/models/", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods_are_errors_in_the_apis_shape(
    api: Api, method: str, path: str, status: int, code: str
) -> None:
    response = await api.http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/chat/completions", "OPTIONS, POST"),
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS, POST"),
    ],
)
async def test_a_path_says_which_methods_it_has(api: Api, path: str, allowed: str) -> None:
    asked = await api.http.options(path)
    assert (asked.status_code, asked.content, asked.headers["allow"]) == (204, b"", allowed)
    assert "access-control-allow-origin" not in asked.headers
    assert (await api.http.delete(path)).headers["allow"] == allowed


async def test_head_is_get_without_a_body(api: Api) -> None:
    for path in ("/v1/models", "/health", "/"):
        got, head = await api.http.get(path), await api.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize("path", POSTS)
async def test_an_answer_carries_the_clients_request_id_or_our_own(api: Api, path: str) -> None:
    own = (await api.http.post(path, json=POSTS[path])).headers
    made = own["request-id" if path == "/v1/messages" else "x-request-id"]
    assert made == api.dispatcher.requests[-1].request_id
    answer = await api.http.post(path, json=POSTS[path], headers={"x-request-id": "trace-7"})
    assert answer.headers.get_list("x-request-id") == ["trace-7"]
    assert api.dispatcher.requests[-1].client_request_id == "trace-7"
    streamed = await api.http.post(
        path if path != "/generate" else "/generate_stream",
        json=POSTS[path] | ({"stream": True} if path != "/generate" else {}),
        headers={"x-request-id": "trace-8"},
    )
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["x-request-id"] == "trace-8"


async def test_a_request_id_beyond_ascii_comes_back_byte_for_byte(api: Api) -> None:
    path = "/v1/chat/completions"
    answer = await api.http.post(path, json=POSTS[path], headers={b"x-request-id": b"trace-\xe9"})
    assert [value for name, value in answer.headers.raw if name.lower() == b"x-request-id"] == [b"trace-\xe9"]


async def test_errors_carry_the_clients_request_id(api: Api) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/nowhere"):
        refused = await api.http.post(path, json={}, headers={"x-request-id": "trace-9"})
        assert refused.status_code in (400, 404)
        assert refused.headers["x-request-id"] == "trace-9"


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u"},
        {"store": True, "metadata": {"team": "a"}},
        {"service_tier": "auto"},
        {"service_tier": "flex"},
        {
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "prompt_cache_options": {},
        },
        {"parallel_tool_calls": False},
        {"modalities": ["text"], "verbosity": "low"},
        {"response_format": {"type": "text"}},
        {"reasoning_effort": "low"},
        {"logit_bias": {"5": -100, "6": 1.5}},
        {"logit_bias": {}},
        {"stop": None, "max_tokens": None, "tools": None, "tool_choice": None, "seed": None},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
    ids=str,
)
async def test_fields_that_the_openai_client_sends_are_taken(api: Api, extra: dict[str, Any]) -> None:
    response = await api.http.post("/v1/chat/completions", json={**CHAT, **extra})
    assert response.status_code == 200, response.text


async def test_logit_bias_has_ids_for_keys(api: Api) -> None:
    await api.openai.chat.completions.create(**CHAT, logit_bias={"5": -100, "6": 1.5})
    assert api.dispatcher.requests[-1].sampling.logit_bias == {5: -100.0, 6: 1.5}


async def test_max_completion_tokens_wins_over_max_tokens(api: Api) -> None:
    await api.openai.chat.completions.create(**CHAT, max_completion_tokens=3, max_tokens=9)
    assert api.dispatcher.requests[-1].stop.max_new_tokens == 3


async def test_strict_schema_becomes_a_grammar(api: Api) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    await api.openai.chat.completions.create(**CHAT, response_format=form)
    grammar = api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert grammar.field == "response_format.json_schema.schema"


async def test_a_seed_comes_with_the_fingerprint_of_what_computes(api: Api) -> None:
    answers = [await api.openai.chat.completions.create(**CHAT, seed=3, service_tier=tier) for tier in (None, "auto")]
    assert [answer.system_fingerprint for answer in answers] == ["fp_0123456789abcdef"] * 2
    assert [answer.service_tier for answer in answers] == [None, "default"]
    stream = await api.openai.chat.completions.create(**CHAT, seed=3, stream=True)
    assert {chunk.system_fingerprint async for chunk in stream} == {"fp_0123456789abcdef"}
    completion = await api.openai.completions.create(model="tiny", prompt="Hello", seed=3)
    assert completion.system_fingerprint == "fp_0123456789abcdef"


async def test_usage_has_the_cached_tokens_and_a_stream_has_it_only_when_asked(api: Api) -> None:
    api.dispatcher.script.cached_tokens = 2
    whole = await api.openai.chat.completions.create(**CHAT)
    assert whole.usage.prompt_tokens_details.cached_tokens == 2
    for asked in (True, False):
        stream = await api.openai.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": asked})
        chunks = [chunk async for chunk in stream]
        assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [asked]
        assert (chunks[-1].choices == []) == asked
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_model_is_found_by_its_name(api: Api) -> None:
    model = await api.openai.models.retrieve("tiny")
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "sluice")
    assert [found.id async for found in api.openai.models.list()] == ["tiny"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages"), ("/v1/embeddings", "")],
)
async def test_a_base_url_with_a_part_too_many_or_too_few_is_told(api: Api, path: str, meant: str) -> None:
    error = (await api.http.post(path, json=CHAT)).json()["error"]
    assert error["message"] == f"no such path: {path}" + (f"; did you mean {meant}?" if meant else "")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_nucleus_of_nothing_is_the_most_likely_token(api: Api, path: str) -> None:
    response = await api.http.post(path, json={**POSTS[path], "top_p": 0})
    assert response.status_code == 200, response.text
    assert 0 < api.dispatcher.requests[-1].sampling.top_p < 1e-3


async def test_a_refused_call_is_told_in_the_log_without_what_it_said(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="services.pd_master.api.app")
    secret = {**CHAT, "messages": [{"role": "my secret", "content": "x"}]}
    await api.http.post("/v1/chat/completions", json=secret, headers={"x-request-id": "mine"})
    await api.http.get("/v1/nothing")
    assert caplog.messages == [
        "POST '/v1/chat/completions' refused: 400 invalid_request param='messages[0].role' key=- client_id='mine'",
        "GET '/v1/nothing' refused: 404 not_found param='' key=- client_id='-'",
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (WorkerFailedError("two engines crashed"), " reason='two engines crashed'"),
        (InvalidRequestError("my secret"), ""),
    ],
)
async def test_the_line_of_a_failed_request_says_why_where_it_is_our_doing(
    api: Api, caplog: pytest.LogCaptureFixture, stream: bool, failure: SluiceError, told: str
) -> None:
    caplog.set_level(logging.INFO, logger="services.pd_master.live_request")
    api.dispatcher.script.output = [api.text.encode("Hello world")]
    api.dispatcher.script.fail_after, api.dispatcher.script.failure = 1, failure
    await api.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    (line,) = [record for record in caplog.records if "prompt_tokens=" in record.getMessage()]
    assert line.getMessage().startswith(f"chat {failure.code} ")
    assert line.getMessage().endswith(f"client_id=-{told}")
    assert line.request_id == api.dispatcher.requests[-1].request_id  # type: ignore[attr-defined]
