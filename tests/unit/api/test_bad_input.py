"""Bad input gets a 4xx in the API's own shape that names the field, and never reaches the dispatcher."""

import dataclasses
from typing import Any

import pytest

from services.common.config import GatewayConfig
from tests.unit.api.conftest import Api

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
COMPLETION = {"model": "tiny", "prompt": "Hello"}

BAD_CHAT = [
    ({"temperatur": 1}, "temperatur"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"n": 0}, "n"),
    ({"n": 5}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"allowed_token_ids": [99999999]}, "allowed_token_ids"),
    ({"bad_words": "no"}, "bad_words"),
    ({"bad_words": ["no", ""]}, "bad_words[1]"),
    ({"bad_words": ["word " * 50]}, "bad_words[0]"),
    ({"bad_words": ["no"], "guided_regex": "a"}, "bad_words"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop_token_ids": [99999999]}, "stop_token_ids"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"other": True}}, "stream_options.other"),
    (
        {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        "stream_options.continuous_usage_stats",
    ),
    ({"guided_json": {"not": {}}}, "guided_json.not"),
    ({"chat_template": "{{ 7 * 7 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"model": 3}, "model"),
]

BAD_COMPLETION = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, 1.5]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [99999999]}, "prompt"),
    ({"prompt": [1] * 512}, "prompt"),
    ({"prompt": "word " * 2000}, "prompt"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"best_of": 9}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 512}, "max_tokens"),
]


async def check(api: Api, path: str, body: dict[str, Any], param: str) -> None:
    response = await api.http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    assert api.dispatcher.requests == []


@pytest.mark.parametrize(("change", "param"), BAD_CHAT, ids=[f"{param}-{at}" for at, (_, param) in enumerate(BAD_CHAT)])
async def test_chat_names_the_field(api: Api, change: dict[str, Any], param: str) -> None:
    await check(api, "/v1/chat/completions", {**CHAT, **change}, param)


@pytest.mark.parametrize(
    ("change", "param"), BAD_COMPLETION, ids=[f"{param}-{at}" for at, (_, param) in enumerate(BAD_COMPLETION)]
)
async def test_completion_names_the_field(api: Api, change: dict[str, Any], param: str) -> None:
    await check(api, "/v1/completions", {**COMPLETION, **change}, param)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokes": 1}, "max_tokes: unknown field; did you mean max_tokens?"),
        (
            {"messages": [{"role": "user", "contents": "x"}]},
            "messages[0].contents: unknown field; did you mean content?",
        ),
        ({"foo": 1}, "foo: unknown field"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role: 'robot' is not allowed; it takes one of assistant, developer, function, system, tool,",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type: 'xml' is not allowed; it takes one of json_object, json_schema, text",
        ),
        ({"tools": [{"type": "x" * 999, "function": {"name": "f"}}]}, f"tools[0].type: '{'x' * 99} is not allowed"),
    ],
)
async def test_the_message_says_what_could_stand_there(api: Api, change: dict[str, Any], message: str) -> None:
    response = await api.http.post("/v1/chat/completions", json={**CHAT, **change})
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(("body", "message"), [(b" ", "the body is empty"), (b"[]", "the body: Expected `object`")])
async def test_a_wrong_body_as_a_whole_is_told(api: Api, body: bytes, message: str) -> None:
    response = await api.http.post("/v1/chat/completions", content=body)
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(("path", "field"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")])
async def test_missing_field_is_named(api: Api, path: str, field: str) -> None:
    await check(api, path, {"model": "tiny"}, field)


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_the_only_model_needs_no_name_and_one_of_several_does(api: Api, path: str, body: dict[str, Any]) -> None:
    unnamed = {key: value for key, value in body.items() if key != "model"}
    answer = (await api.http.post(path, json=unnamed)).json()
    assert answer["model"] == "tiny"
    api.models.served = [*api.models.served, dataclasses.replace(api.models.served[0], name="other")]
    error = (await api.http.post(path, json=unnamed)).json()["error"]
    assert error["param"] == "model"
    assert error["message"] == "several models are served, name one of: tiny, other"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"model":"tiny",}', b'{"model":"\\ud800"}', b"[" * 50_000],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_malformed_body_is_400(api: Api, path: str, body: bytes) -> None:
    response = await api.http.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]


async def test_an_earlier_answer_can_be_sent_back_whole(api: Api) -> None:
    answer = await api.openai.chat.completions.create(**CHAT)
    messages = [*CHAT["messages"], answer.choices[0].message.model_dump(), {"role": "user", "content": "more"}]
    response = await api.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert response.status_code == 200, response.text


async def test_wrong_model_is_404_naming_it(api: Api) -> None:
    response = await api.http.post("/v1/chat/completions", json={**CHAT, "model": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "model"


async def test_without_any_worker_it_is_503_not_404(api: Api) -> None:
    api.models.served.clear()
    response = await api.http.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


async def test_body_beyond_the_limit_is_413(api: Api, config: GatewayConfig) -> None:
    body = b'{"model":"' + b"x" * config.max_body_bytes + b'"}'
    response = await api.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 413


async def test_body_beyond_the_limit_without_a_declared_length_is_413(api: Api, config: GatewayConfig) -> None:
    async def parts() -> Any:  # noqa: ANN401
        for _ in range(config.max_body_bytes // 1000 + 2):
            yield b"x" * 1000

    response = await api.http.post("/v1/chat/completions", content=parts())
    assert response.status_code == 413
