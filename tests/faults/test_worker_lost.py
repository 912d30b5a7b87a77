"""`kill -9` of a worker under load: streams continue elsewhere with the same greedy text, or end with a clear error."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.integration.client import Answer, stream, stream_all
from tests.integration.cluster import Cluster, Process
from tests.integration.leaks import wait_nothing_left
from tests.integration.oracle import Oracle

NUM_STREAMS = 16
MAX_NEW_TOKENS = 48
KILL_AFTER_TOKENS = 4
SUCCESSOR_TOKENS = 16
OPTIONS = ["--dtype", "float32", "--chunk-tokens", "64", "--reservation-lease-s", "5"]


@pytest.fixture
def cluster(model_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    """Two workers of each role."""
    with Cluster(model_dir, tmp_path, prefill=2, decode=2, worker_options=OPTIONS) as running:
        yield running


async def run_and_kill(cluster: Cluster, prompts: Sequence[Sequence[int]], victim: Process) -> list[Answer]:
    """All prompts at once; the victim dies when some tokens have come back. None may hang."""
    async with httpx.AsyncClient(base_url=cluster.url, limits=httpx.Limits(max_connections=None)) as client:
        tasks = [asyncio.create_task(stream(client, prompt, MAX_NEW_TOKENS, ignore_eos=True)) for prompt in prompts]
        probe = await stream(client, prompts[0], KILL_AFTER_TOKENS)
        assert len(probe.token_ids) == KILL_AFTER_TOKENS
        await asyncio.to_thread(victim.kill)
        return list(await asyncio.wait_for(asyncio.gather(*tasks), 240))


def assert_right_or_clear_error(
    oracle: Oracle, prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer], num_tokens: int
) -> int:
    """No repeated, skipped or wrong token anywhere; returns how many streams ended whole."""
    whole = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = oracle.generate(prompt, num_tokens, ignore_eos=True, guess=answer.token_ids)
        assert answer.token_ids == expected[: len(answer.token_ids)]
        assert answer.counts == list(range(1, len(answer.counts) + 1))
        whole += answer.token_ids == expected
        if answer.token_ids != expected:
            assert answer.error, "a stream ended early with neither a finish nor an error"
    return whole


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_streams_survive_a_killed_worker_and_its_successor_is_used(cluster: Cluster, oracle: Oracle, role: str) -> None:
    prompts = oracle.sixteen_prompts()
    victim = cluster.processes[f"{role}-0"]

    answers = asyncio.run(run_and_kill(cluster, prompts, victim))

    assert assert_right_or_clear_error(oracle, prompts, answers, MAX_NEW_TOKENS) == NUM_STREAMS
    wait_nothing_left(cluster)
    victim.start()
    cluster.wait_ready()
    kept_alive = cluster.processes[f"{role}-1"]
    kept_alive.kill()
    answers = asyncio.run(stream_all(cluster.url, prompts, SUCCESSOR_TOKENS, NUM_STREAMS, ignore_eos=True))
    assert assert_right_or_clear_error(oracle, prompts, answers, SUCCESSOR_TOKENS) == NUM_STREAMS, (
        "the worker that came back was not used"
    )
