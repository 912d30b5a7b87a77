"""The OpenAPI document of the HTTP API, made from types. Bodies are parsed by theirs, so of bodies it cannot say
anything else; whole answers are type-checked; events are joined from bytes, and only tests compare them with their
types."""

from importlib import metadata
from typing import Any

import msgspec

from services.pd_master.api.errors import Error
from services.pd_master.api.http import HttpCall
from services.pd_master.api.openapi_paths import GETS, MODEL, POSTS, Get, Post
from services.pd_master.gateway import Gateway

Schema = dict[str, Any]

_ERRORS = {
    "400": "A field is wrong; the error names it",
    "401": "The API key is missing or not known",
    "404": "No such model",
    "413": "The body is too large",
    "429": "Overload; Retry-After says when to come back",
    "500": "The serving system failed",
    "503": "No worker; Retry-After says when to come back",
    "504": "The request's deadline passed",
}


def build_document(model: str = "demo") -> dict[str, Any]:
    """OpenAPI 3.2, which is the first that can tell what the events of a stream hold. `model`: for the examples."""
    types: set[type] = {Error}
    for post in POSTS.values():
        types |= {post.body, post.answer, post.error} | ({post.event} if post.event else set())
    types |= {get.answer for get in GETS.values() if get.answer}
    ordered = sorted(types, key=lambda found: found.__qualname__)
    references, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(ordered, references, strict=True))
    paths: dict[str, Any] = {path: {"get": _get(path, get, schema_of)} for path, get in GETS.items()}
    for path, post in POSTS.items():
        paths.setdefault(path, {})["post"] = _post(post, schema_of, model)
    paths["/get_model_name"]["post"] = paths["/get_model_name"]["get"]
    return {
        "openapi": "3.2.0",
        "info": {"title": "Sluice", "version": metadata.version("sluice"), "summary": "Serves large language models."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
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
    errors = ["401", "503"]
    shown: dict[str, Any] = {"summary": get.summary}
    if path.endswith("}"):
        name = path[path.index("{") + 1 : -1]
        shown["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        errors.append("404")
    answers = {"200": {"description": "The answer", "content": {get.content_type: content}}}
    if path == "/readiness":
        answers["503"] = {"description": "It drains", "content": {get.content_type: content}}
        errors.remove("503")
    return {**shown, "responses": {**answers, **{status: _error(status, schema_of[Error]) for status in errors}}}


def _post(post: Post, schema_of: dict[type, Schema], model: str) -> dict[str, Any]:
    content: Schema = {"application/json": {"schema": schema_of[post.answer]}}
    if post.event is not None:
        content["text/event-stream"] = {"itemSchema": _event(schema_of[post.event], done=post.done)}
    examples = {name: {"value": _with_model(example, model)} for name, example in post.examples.items()}
    body = {"application/json": {"schema": schema_of[post.body], "examples": examples}}
    errors = {status: _error(status, schema_of[post.error]) for status in _ERRORS}
    return {
        "summary": post.summary,
        "requestBody": {"required": True, "content": body},
        "responses": {"200": {"description": "The answer", "content": content}, **errors},
    }


def _event(data: Schema, *, done: bool) -> Schema:
    """A server-sent event."""
    holds: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if done:
        holds = {"anyOf": [{"const": "[DONE]"}, holds]}
    return {"type": "object", "required": ["data"], "properties": {"event": {"type": "string"}, "data": holds}}


def _with_model(example: dict[str, Any], model: str) -> dict[str, Any]:
    return {**example, "model": model} if example.get("model") == MODEL else example


def _error(status: str, schema: Schema) -> dict[str, Any]:
    return {"description": _ERRORS[status], "content": {"application/json": {"schema": schema}}}
