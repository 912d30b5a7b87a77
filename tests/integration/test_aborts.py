"""A client that goes away, in each stage of its request's life: both workers stop and keep nothing of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.client import stream
from tests.integration.cluster import Cluster
from tests.integration.leaks import wait_nothing_left
from tests.integration.oracle import Oracle
from tests.integration.prompts import LONG

WITHIN_S = 2.0
"""One second to stop, and up to one for the engine's next report of what it holds."""
FOREVER = 4000
"""Output tokens: none of these requests would end within the test."""
DEADLINE_S = 6.0


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    """1P1D where one request at a time decodes, and a long prompt takes many steps."""
    logs = log_dir / "aborts"
    logs.mkdir()
    options = ["--chunk-tokens", "32", "--max-running-requests", "2", "--no-prefix-cache"]
    with Cluster(model_dir, logs, worker_options=options, gateway_options=["--deadline-s", str(DEADLINE_S)]) as running:
        yield running


async def leave_after(cluster: Cluster, prompt: list[int], tokens: int, *, patience_s: float) -> int:
    """Read up to `tokens` tokens, for at most `patience_s`, then hang up; returns how many came."""
    seen = 0
    body = {"inputs": prompt, "parameters": {"do_sample": False, "max_new_tokens": FOREVER, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as client:
        try:
            async with asyncio.timeout(patience_s), client.stream("POST", "/generate_stream", json=body) as response:
                async for line in response.aiter_lines():
                    seen += line.startswith("data:")
                    if seen == tokens:
                        break
        except TimeoutError:
            pass
    return seen


def test_hanging_up_while_decoding_frees_everything(cluster: Cluster, oracle: Oracle) -> None:
    assert asyncio.run(leave_after(cluster, list(oracle.chat_ids("Count to ten.")), 5, patience_s=60)) == 5
    wait_nothing_left(cluster, WITHIN_S)


def test_hanging_up_during_prefill_frees_everything(cluster: Cluster, oracle: Oracle) -> None:
    prompt = list(oracle.ids(LONG)) * 16
    assert asyncio.run(leave_after(cluster, prompt, 1, patience_s=0.4)) == 0
    wait_nothing_left(cluster, WITHIN_S)


def test_hanging_up_in_the_queue_frees_everything(cluster: Cluster, oracle: Oracle) -> None:
    async def crowd() -> list[int]:
        prompt = list(oracle.chat_ids("Tell me a story."))
        return await asyncio.gather(*(leave_after(cluster, prompt, FOREVER, patience_s=1.5) for _ in range(12)))

    seen = asyncio.run(crowd())
    assert seen.count(0) > 0, "nobody was left in the queue"
    wait_nothing_left(cluster, WITHIN_S)


def test_a_deadline_ends_the_request_with_a_clear_answer(cluster: Cluster) -> None:
    model = httpx.get(f"{cluster.url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "prompt": "Once", "max_tokens": FOREVER, "ignore_eos": True}
    answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 504, answer.text
    assert "deadline" in answer.json()["error"]["message"]
    wait_nothing_left(cluster, WITHIN_S)


def test_the_workers_still_serve_after_all_that(cluster: Cluster, oracle: Oracle) -> None:
    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            return (await stream(client, oracle.chat_ids("What is the capital of France?"), 16)).token_ids

    assert oracle.text(asyncio.run(ask())) == "The capital of France is Paris."
