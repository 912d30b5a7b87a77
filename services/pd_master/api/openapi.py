"""The OpenAPI document of the HTTP API, made from types. Bodies are parsed by theirs, so of bodies it cannot say
anything else; whole answers are type-checked; events are joined from bytes, and only tests compare them with their
types."""

import json
from importlib import metadata
from typing import Any

import msgspec

from services.pd_master.api.anthropic.wire import anthropic_error
from services.pd_master.api.errors import Error, openai_error
from services.pd_master.api.http import HttpCall
from services.pd_master.api.native.answers import NativeEvent
from services.pd_master.api.openapi_answers import ANSWERS, EVENTS, MODEL
from services.pd_master.api.openapi_errors import STATUSES, error_answer
from services.pd_master.api.openapi_paths import GETS, POSTS, Get, Post
from services.pd_master.gateway import Gateway

Schema = dict[str, Any]

_KEYS = {
    "key": {"type": "http", "scheme": "bearer"},
    "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""The ways to send an API key; each path takes either."""


def build_document(model: str = "demo") -> dict[str, Any]:
    """OpenAPI 3.2, which is the first that can tell what the events of a stream hold. `model`: for the examples."""
    types: set[type] = {Error}
    for post in POSTS.values():
        types |= {post.body, post.answer, post.error} | ({post.event} if post.event else set())
    types |= {found for get in GETS.values() for found in (get.answer, get.anthropic) if found}
    ordered = sorted(types, key=lambda found: found.__qualname__)
    references, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(ordered, references, strict=True))
    paths: dict[str, Any] = {path: {"get": _get(path, get, schema_of)} for path, get in GETS.items()}
    for path, post in POSTS.items():
        paths.setdefault(path, {})["post"] = _post(path, post, schema_of)
    paths["/get_model_name"]["post"] = paths["/get_model_name"]["get"]
    return {
        "openapi": "3.2.0",
        "info": {"title": "Sluice", "version": metadata.version("sluice"), "summary": "Serves large language models."},
        "paths": _with_model(msgspec.to_builtins(paths), model),
        "components": {"schemas": components, "securitySchemes": _KEYS},
        "security": [{}, {"key": []}, {"anthropic_key": []}],
    }


class OpenApiEndpoint:
    """Handler of `GET /openapi.json`. Its examples name a model that is served, so they can be sent as they are."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._documents: dict[str, bytes] = {}

    async def __call__(self, call: HttpCall) -> None:
        """The document."""
        served = self._gateway.models.models()
        name = served[0].name if served else "demo"
        if name not in self._documents:
            self._documents = {name: msgspec.json.encode(build_document(name))}
        await call.reply(200, self._documents[name])


def _get(path: str, get: Get, schema_of: dict[type, Schema]) -> dict[str, Any]:
    content: Schema = {} if get.answer is None else {"schema": schema_of[get.answer]}
    if get.answer is not None and get.anthropic is not None:
        content = {"schema": {"anyOf": [schema_of[get.answer], schema_of[get.anthropic]]}}
    if path in ANSWERS:
        content["examples"] = {"plain": {"value": ANSWERS[path]}}
    errors = ["401", "503"]
    shown: dict[str, Any] = {"summary": get.summary}
    if path.endswith("}"):
        name = path[path.index("{") + 1 : -1]
        shown["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        errors.append("404")
    answers = {"200": {"description": "The answer", "content": {get.content_type: content}}}
    if path == "/readiness":
        draining = {"draining": {"value": {"message": "Draining"}}}
        answers["503"] = {"description": "It drains", "content": {get.content_type: {**content, "examples": draining}}}
        errors.remove("503")
    failures = {status: error_answer(status, schema_of[Error], openai_error) for status in errors}
    return {**shown, "responses": {**answers, **failures}}


def _post(path: str, post: Post, schema_of: dict[type, Schema]) -> dict[str, Any]:
    answered = {"plain": {"value": ANSWERS[path]}}
    content: Schema = {"application/json": {"schema": schema_of[post.answer], "examples": answered}}
    if post.event is not None:
        streamed = {"stream": {"serializedValue": _stream(path, post)}}
        content["text/event-stream"] = {
            "itemSchema": _event(schema_of[post.event], done=post.done), "examples": streamed,
        }  # fmt: skip
    examples = {name: {"value": example} for name, example in post.examples.items()}
    body = {"application/json": {"schema": schema_of[post.body], "examples": examples}}
    shape = openai_error if post.error is Error else anthropic_error
    failures = {status: error_answer(status, schema_of[post.error], shape) for status in STATUSES}
    return {
        "summary": post.summary,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer", "content": content}, **failures},
    }


def _event(data: Schema, *, done: bool) -> Schema:
    """A server-sent event."""
    holds: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if done:
        holds = {"anyOf": [{"const": "[DONE]"}, holds]}
    return {"type": "object", "required": ["data"], "properties": {"event": {"type": "string"}, "data": holds}}


def _stream(path: str, post: Post) -> str:
    """A whole stream as it crosses the wire: the native API's has no space, others name their typed events."""
    colon = ":" if post.event is NativeEvent else ": "
    lines = []
    for event in EVENTS[path]:
        name = f"event: {event['type']}\n" if "type" in event else ""
        lines.append(f"{name}data{colon}{msgspec.json.encode(event).decode()}\n\n")
    return "".join(lines) + ("data: [DONE]\n\n" if post.done else "")


def _with_model(value: Any, model: str) -> Any:  # noqa: ANN401 - JSON
    """The same with the model's name wherever an example holds MODEL."""
    if isinstance(value, dict):
        return {key: _with_model(item, model) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_model(item, model) for item in value]
    if isinstance(value, str):
        return model if value == MODEL else value.replace(f'"model":"{MODEL}"', f'"model":{json.dumps(model)}')
    return value
