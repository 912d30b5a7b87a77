"""Short prompts computed on the decode worker itself: the same tokens, without a transfer."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client import stream_all
from tests.integration.cluster import Cluster
from tests.integration.leaks import wait_nothing_left
from tests.integration.oracle import Oracle
from tests.integration.prompts import CHAT

MAX_NEW_TOKENS = 16


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    """1P1D whose gateway may take the short cut."""
    logs = log_dir / "local"
    logs.mkdir()
    with Cluster(model_dir, logs, worker_options=["--dtype", "float32"], local_prefill_tokens=256) as running:
        yield running


def test_prompts_computed_on_the_decode_worker_equal_transformers(cluster: Cluster, oracle: Oracle) -> None:
    for at_once, num_prompts in ((1, 4), (8, len(CHAT))):
        prompts = [oracle.chat_ids(text) for text in CHAT[:num_prompts]]
        answers = asyncio.run(stream_all(cluster.url, prompts, MAX_NEW_TOKENS, at_once=at_once))
        expected = [
            oracle.generate(prompt, MAX_NEW_TOKENS, guess=answer.token_ids)
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        assert [answer.token_ids for answer in answers] == expected
    computed = cluster.processes["decode-0"].value("sluice_engine_prefill_tokens_total")
    assert computed > 0, "no prompt took the short cut"
    wait_nothing_left(cluster)
