"""Two prefill workers with real prefix caches: a prompt goes where its beginning is, for as long as it is there.

That it goes anywhere once masters have heard of the eviction is left to chance by the selector, and tested there.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.cluster import Cluster

MODEL = "demo"
POOL = 1024
BLOCK = 64
SYSTEM = [1000 + token for token in range(5 * BLOCK)]
"""What a chat's prompts begin with."""


@pytest.fixture
def cluster(model_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    """2P1D with pools that three of the prompts fill."""
    options = ["--kv-pool-tokens", str(POOL), "--max-context-tokens", "512", "--served-model-name", MODEL]
    with Cluster(model_dir, tmp_path, prefill=2, worker_options=options) as running:
        yield running


async def cached_tokens(client: httpx.AsyncClient, prompt: list[int]) -> int:
    """Ask for one token; what usage says of the prompt."""
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def value(page: str, name: str) -> float:
    """Of a series without labels."""
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found, f"no {name}"
    return float(found.group(1))


def prompts_taken(cluster: Cluster) -> list[float]:
    """Prompt tokens that each prefill worker has let in."""
    return [value(one.metrics(), "sluice_prompt_tokens_total") for one in cluster.workers("prefill")]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what the workers' next heartbeat brings."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the gateway's page has no event for it
            await asyncio.sleep(0.1)


async def taker(cluster: Cluster, client: httpx.AsyncClient, suffix: int) -> tuple[int, int]:
    """Send SYSTEM with an end of its own: which worker took it, and how many tokens it had."""
    before = prompts_taken(cluster)
    cached = await cached_tokens(client, [*SYSTEM, suffix, suffix])
    grown = [now - then for now, then in zip(prompts_taken(cluster), before, strict=True)]
    return grown.index(max(grown)), cached


async def evict(cluster: Cluster, client: httpx.AsyncClient, starts: Iterator[int]) -> None:
    """Fill both pools with other prompts, several at once, until each worker has let in more than its pool holds."""
    before = prompts_taken(cluster)
    while min(now - then for now, then in zip(prompts_taken(cluster), before, strict=True)) < 1.5 * POOL:
        prompts = [[first + token for token in range(6 * BLOCK)] for first in itertools.islice(starts, 12)]
        assert prompts, "all have been sent, and one worker had too few of them"
        await asyncio.gather(*(cached_tokens(client, prompt) for prompt in prompts))


async def test_a_prefix_draws_its_prompts_while_it_is_held(cluster: Cluster) -> None:
    def num_blocks() -> float:
        return value(httpx.get(f"{cluster.url}/metrics", timeout=60).text, "sluice_gateway_prefix_blocks")

    async with httpx.AsyncClient(base_url=cluster.url, timeout=200) as client:
        holder, cached = await taker(cluster, client, 7)
        assert cached == 0
        await until(lambda: num_blocks() >= 5)
        for suffix in range(8, 14):
            assert await taker(cluster, client, suffix) == (holder, 5 * BLOCK)

        await evict(cluster, client, iter(range(2_000, 48_000, 60)))
        _, cached = await taker(cluster, client, 20)
        assert cached == 0, "it was evicted"
