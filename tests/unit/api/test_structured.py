"""Every way to ask for a form becomes the grammar that engines get; what no grammar can hold is named."""

import contextlib
import json
from typing import Any

import openai
import pydantic
import pytest

from services.common.errors import InvalidRequestError
from services.common.request import GrammarKind, GrammarSpec
from tests.unit.api.conftest import Api

ASK: list[Any] = [{"role": "user", "content": "x"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Person(pydantic.BaseModel):
    name: str
    age: int


async def sent(api: Api, path: str, body: dict[str, Any]) -> GrammarSpec | None:
    answer = await api.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return api.dispatcher.requests[-1].sampling.grammar


FORMS: list[tuple[dict[str, Any], GrammarKind, str]] = [
    ({"guided_json": SCHEMA}, GrammarKind.JSON_SCHEMA, "guided_json"),
    ({"guided_json": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, "guided_json"),
    ({"guided_regex": "a+"}, GrammarKind.REGEX, "guided_regex"),
    ({"guided_choice": ["a", "b"]}, GrammarKind.EBNF, "guided_choice"),
    ({"guided_grammar": 'root ::= "a"'}, GrammarKind.EBNF, "guided_grammar"),
    ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, "structured_outputs.json"),
    ({"structured_outputs": {"choice": ["a"]}}, GrammarKind.EBNF, "structured_outputs.choice"),
    ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_SCHEMA, "structured_outputs.json_object"),
]


@pytest.mark.parametrize(("fields", "kind", "field"), FORMS)
async def test_extras_work_on_both_openai_paths(
    api: Api, fields: dict[str, Any], kind: GrammarKind, field: str
) -> None:
    for path, ask in (("/v1/chat/completions", {"messages": ASK}), ("/v1/completions", {"prompt": "x"})):
        grammar = await sent(api, path, {"model": "tiny", **ask, **fields})
        assert grammar is not None
        assert (grammar.kind, grammar.field) == (kind, field)


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}])
async def test_response_format_becomes_a_schema(api: Api, form: dict[str, Any]) -> None:
    grammar = await sent(api, "/v1/chat/completions", {"model": "tiny", "messages": ASK, "response_format": form})
    assert grammar is not None
    assert json.loads(grammar.source) == (SCHEMA if "json_schema" in form else {"type": "object"})


async def test_text_asks_for_no_grammar(api: Api) -> None:
    body = {"model": "tiny", "messages": ASK, "response_format": {"type": "text"}}
    assert await sent(api, "/v1/chat/completions", body) is None


async def test_the_official_clients_pydantic_models_cross(api: Api) -> None:
    with contextlib.suppress(pydantic.ValidationError, openai.LengthFinishReasonError):  # the fake's output is no JSON
        await api.openai.chat.completions.parse(model="tiny", messages=ASK, response_format=Person)
    grammar = api.dispatcher.requests[-1].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.source)["required"] == ["name", "age"]


async def test_other_apis_have_it_too(api: Api) -> None:
    responses = {"model": "tiny", "input": "x", "text": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    output = {"format": {"type": "json_schema", "schema": SCHEMA}}
    messages = {"model": "tiny", "max_tokens": 5, "messages": ASK, "output_config": output}
    native = {"inputs": "x", "parameters": {"guided_json": SCHEMA}}
    for path, body in (("/v1/responses", responses), ("/v1/messages", messages), ("/generate", native)):
        grammar = await sent(api, path, body)
        assert grammar is not None
        assert json.loads(grammar.source) == SCHEMA


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {"properties": {"a": {"uniqueItems": True}}}}, "guided_json.properties.a.uniqueItems"),
        ({"guided_json": {"anyOf": [{}, 3]}}, "guided_json.anyOf[1]"),
        ({"guided_json": {"$ref": "http://elsewhere"}}, "guided_json.$ref"),
        ({"guided_json": {"minLength": 2, "pattern": "a"}}, "guided_json.pattern"),
        ({"guided_json": {"minLength": 3, "maxLength": 2}}, "guided_json.maxLength"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_regex": " "}, "guided_regex"),
        ({"guided_regex": "a" * 70_000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
async def test_what_cannot_be_held_is_named(api: Api, fields: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "messages": ASK, **fields}
    answer = await api.http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_deep_schemas_are_refused_and_not_followed(api: Api) -> None:
    schema: dict[str, Any] = {}
    for _ in range(80):
        schema = {"items": schema}
    answer = await api.http.post("/v1/chat/completions", json={"model": "tiny", "messages": ASK, "guided_json": schema})
    assert answer.status_code == 400
    assert "deeper" in answer.json()["error"]["message"]


async def test_a_workers_refusal_is_the_clients_error(api: Api) -> None:
    refusal = InvalidRequestError("guided_regex: The parenthesis is not closed.", param="guided_regex")
    api.dispatcher.script.failure, api.dispatcher.script.fail_after = refusal, 0
    body = {"model": "tiny", "messages": ASK, "guided_regex": "(a"}
    for stream in (False, True):
        answer = await api.http.post("/v1/chat/completions", json={**body, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_regex")
