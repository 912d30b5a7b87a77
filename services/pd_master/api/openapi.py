"""The OpenAPI document of the HTTP API, made from the types that parse the bodies, so that it cannot differ from
them."""

from importlib import metadata
from typing import Any, NamedTuple

import msgspec

from services.pd_master.api.anthropic.schema import CountBody, MessagesBody
from services.pd_master.api.http import HttpCall
from services.pd_master.api.native.schema import GenerateBody, RootBody, TokensBody
from services.pd_master.api.openai.chat_schema import ChatBody
from services.pd_master.api.openai.completion_schema import CompletionBody
from services.pd_master.api.responses.schema import ResponsesBody

_ASK = [{"role": "user", "content": "What is the capital of France?"}]


class Post(NamedTuple):
    """A path that takes a body."""

    summary: str
    body: type
    example: dict[str, Any]
    streams: bool = False


class Get(NamedTuple):
    """A path that only answers."""

    summary: str
    content_type: str = "application/json"


POSTS = {
    "/v1/chat/completions": Post(
        "Chat, OpenAI's API", ChatBody, {"model": "demo", "messages": _ASK, "max_tokens": 32}, streams=True
    ),
    "/v1/completions": Post(
        "Continue a prompt, OpenAI's API",
        CompletionBody,
        {"model": "demo", "prompt": "Once upon a time", "max_tokens": 32},
        streams=True,
    ),
    "/v1/responses": Post(
        "A response, OpenAI's API", ResponsesBody, {"model": "demo", "input": "Say hello."}, streams=True
    ),
    "/v1/messages": Post(
        "The next message, Anthropic's API",
        MessagesBody,
        {"model": "demo", "max_tokens": 32, "messages": _ASK},
        streams=True,
    ),
    "/v1/messages/count_tokens": Post(
        "Tokens of messages, Anthropic's API", CountBody, {"model": "demo", "messages": _ASK}
    ),
    "/generate": Post(
        "Continue a prompt, native API", GenerateBody, {"inputs": "The sky is", "parameters": {"max_new_tokens": 8}}
    ),
    "/generate_stream": Post(
        "Continue a prompt, an event a token, native API",
        GenerateBody,
        {"inputs": "The sky is", "parameters": {"max_new_tokens": 8}},
        streams=True,
    ),
    "/": Post(
        "Either of them, by `stream`, native API", RootBody, {"inputs": "The sky is", "stream": False}, streams=True
    ),
    "/tokens": Post("Tokens of a text, native API", TokensBody, {"text": "The sky is blue."}),
}

GETS = {
    "/v1/models": Get("Models that are served"),
    "/token_load": Get("Load as shares of the KV slots"),
    "/get_model_name": Get("The model's name"),
    "/get_server_info": Get("Version, options and models"),
    "/health": Get("Whether the process lives"),
    "/healthz": Get("Whether the process lives"),
    "/liveness": Get("Whether the process lives"),
    "/readiness": Get("Whether it takes new requests"),
    "/metrics": Get("Prometheus exposition", "text/plain"),
    "/openapi.json": Get("This document"),
    "/": Get("The console page", "text/html"),
    "/console/console.css": Get("Its looks", "text/css"),
    "/console/console.js": Get("Its script", "text/javascript"),
    "/console/state": Get("Workers, load and requests by stage, as the console shows them"),
}

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


def build_document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    types = {post.body for post in POSTS.values()}
    ordered = sorted(types, key=lambda body: body.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(ordered, references, strict=True))
    paths: dict[str, Any] = {path: {"get": _get(get)} for path, get in GETS.items()}
    for path, post in POSTS.items():
        paths.setdefault(path, {})["post"] = _post(post, schema_of[post.body])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": metadata.version("sluice"), "summary": "Serves large language models."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


class OpenApiEndpoint:
    """Handler of `GET /openapi.json`."""

    def __init__(self) -> None:
        self._document = msgspec.json.encode(build_document())

    async def __call__(self, call: HttpCall) -> None:
        """The document."""
        await call.reply(200, self._document)


def _get(get: Get) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "The answer", "content": {get.content_type: {}}}
    return {"summary": get.summary, "responses": {"200": answer, "401": _error("401"), "503": _error("503")}}


def _post(post: Post, schema: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if post.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    body = {"application/json": {"schema": schema, "example": post.example}}
    return {
        "summary": post.summary,
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{status: _error(status) for status in _ERRORS},
        },
    }


def _error(status: str) -> dict[str, Any]:
    schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
    return {"description": _ERRORS[status], "content": {"application/json": {"schema": schema}}}
