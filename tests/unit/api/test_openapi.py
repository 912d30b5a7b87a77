"""The OpenAPI document tells the truth: every path is in it, its examples work, and generated requests never break
us."""

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from services.pd_master.api.openapi import GETS, POSTS, build_document
from services.pd_master.api.routes import build_app
from tests.unit.api.conftest import Api

DOCUMENT = build_document()
FUZZED_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/generate")
FUZZED = settings(
    max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


async def test_every_route_is_in_the_document(api: Api) -> None:
    app = build_app(api.gateway, api.health)
    methods = {(path, method) for path, found in app.paths().items() for method in found}
    documented = {(path, "GET") for path in GETS} | {(path, "POST") for path in POSTS}
    assert methods == documented | {("/get_model_name", "POST")}
    assert (await api.http.get("/openapi.json")).json() == DOCUMENT


@pytest.mark.parametrize("path", POSTS)
async def test_examples_work(api: Api, path: str) -> None:
    example = {**POSTS[path].example}
    if "model" in example:
        example["model"] = "tiny"
    response = await api.http.post(path, json=example)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", FUZZED_PATHS)
async def test_generated_bodies_are_answered_or_refused_by_name(api: Api, path: str) -> None:
    """Bodies drawn from the document, sensible and not: never a 5xx, and each refusal in the API's shape."""
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    seen: list[tuple[int, Any]] = []
    loop = asyncio.get_running_loop()

    def send(body: object) -> None:
        sent = api.http.post(path, json=body if not isinstance(body, bytes) else None, timeout=20)
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
