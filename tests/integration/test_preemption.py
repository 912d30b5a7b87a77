"""A decode pool too small for what it is promised: sequences are preempted and resumed, and no text shows it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client import stream_all
from tests.integration.cluster import Cluster
from tests.integration.leaks import wait_nothing_left
from tests.integration.oracle import Oracle
from tests.integration.prompts import PLAIN

NUM_TOKENS = 80
PROMPTS = PLAIN[:4] + PLAIN[5:11]
"""Texts that the demo model continues for longer than that. Their outputs come to 800 tokens: more than a pool and
a half."""
POOL = ["--dtype", "float32", "--kv-pool-tokens", "480", "--max-context-tokens", "256", "--no-prefix-cache"]
EAGER = ["--prior-output-tokens", "1"]
"""The Router expects one token from each request, then twice what it has seen: so it lets in all that fit with their
prompts and 32 slots more, which are nine of ten."""


@pytest.fixture
def cluster(model_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    """1P1D with a small pool."""
    with Cluster(model_dir, tmp_path, worker_options=[*POOL, *EAGER]) as running:
        yield running


def test_preempted_sequences_resume_with_the_same_tokens(cluster: Cluster, oracle: Oracle) -> None:
    prompts = [oracle.ids(text) for text in PROMPTS]

    answers = asyncio.run(stream_all(cluster.url, prompts, NUM_TOKENS, at_once=len(prompts)))

    assert [answer.error for answer in answers] == [""] * len(prompts)
    expected = [
        oracle.generate(prompt, NUM_TOKENS, guess=answer.token_ids)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    assert [answer.token_ids for answer in answers] == expected
    assert [len(ids) for ids in expected] == [NUM_TOKENS] * len(prompts), "too short to press the pool"
    for answer in answers:
        assert answer.counts == list(range(1, len(answer.token_ids) + 1))
    decode = cluster.processes["decode-0"]
    assert decode.value("sluice_engine_preemptions_total"), "the pool was not small enough to show anything"
    wait_nothing_left(cluster)
    deadline = time.monotonic() + 60
    while not decode.value("sluice_engine_restored_sequences_total"):  # the engine tells its totals once a second
        assert time.monotonic() < deadline, "nothing came back from the host cache"
        time.sleep(0.05)
