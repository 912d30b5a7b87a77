"""The little HTTP server over real sockets."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from services.worker.health_server import METRICS_TYPE, HealthServer, Page, verdict

problem: list[str] = []


@pytest.fixture
async def url() -> AsyncIterator[str]:
    problem.clear()
    server = HealthServer(
        {
            "/readiness": lambda: verdict(problem[0] if problem else None),
            "/metrics": lambda: Page(200, b"x 1\n", METRICS_TYPE),
        }
    )
    yield f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    await server.stop()


async def test_a_page_follows_its_verdict(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/readiness?verbose")).text == "ok\n"
        problem.append("the model is loading")
        answer = await client.get(f"{url}/readiness")
    assert (answer.status_code, answer.text) == (503, "the model is loading\n")


async def test_metrics_carry_their_type_and_head_has_no_body(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/metrics")).headers["content-type"] == METRICS_TYPE
        answer = await client.head(f"{url}/metrics")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "4")


async def test_wrong_path_and_method_are_named(url: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/nothing")).status_code == 404
        assert (await client.post(f"{url}/readiness")).status_code == 405


@pytest.mark.parametrize("head", [b"nonsense\r\n\r\n", b"GET /readiness SPDY/3\r\n\r\n"])
async def test_what_is_no_http_is_refused(url: str, head: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    assert (await reader.readline()).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_client_that_leaves_halfway_does_no_harm(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /read")
    writer.close()
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"{url}/readiness")).status_code == 200
