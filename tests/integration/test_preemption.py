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
from tests.integration.prompts import CHAT, PLAIN

MAX_NEW_TOKENS = 40
POOL = ["--dtype", "float32", "--kv-pool-tokens", "480", "--max-context-tokens", "256", "--no-prefix-cache"]
EAGER = ["--prior-output-tokens", "1"]
"""The Router expects one token from each request, so it lets in more than there is room for."""


@pytest.fixture
def cluster(model_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    """1P1D with a small pool."""
    with Cluster(
        model_dir, tmp_path, worker_options=[*POOL, *EAGER], gateway_options=["--queue-budget-s", "300"]
    ) as running:
        yield running


def test_preempted_sequences_resume_with_the_same_tokens(cluster: Cluster, oracle: Oracle) -> None:
    prompts = [oracle.chat_ids(text) for text in CHAT] + [oracle.ids(text) for text in PLAIN]

    answers = asyncio.run(stream_all(cluster.url, prompts, MAX_NEW_TOKENS, at_once=len(prompts)))

    for prompt, answer in zip(prompts, answers, strict=True):
        assert not answer.error
        assert answer.token_ids == oracle.generate(prompt, MAX_NEW_TOKENS)
        assert answer.counts == list(range(1, len(answer.token_ids) + 1))
    decode = cluster.processes["decode-0"]
    assert decode.value("sluice_engine_preemptions_total"), "the pool was not small enough to show anything"
    wait_nothing_left(cluster, within_s=3)
    deadline = time.monotonic() + 10
    while not decode.value("sluice_engine_restored_sequences_total"):  # the engine tells its totals once a second
        assert time.monotonic() < deadline, "nothing came back from the host cache"
        time.sleep(0.05)
