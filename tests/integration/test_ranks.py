"""Workers of two tensor parallel ranks beside workers of one, as real processes: same tokens, and one end for all."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import make_worded_model, prompt_of, reference_greedy
from tests.integration.client import stream_all
from tests.integration.cluster import Cluster
from tests.integration.leaks import wait_nothing_left

pytestmark = pytest.mark.timeout(300)  # ten processes start on what cores there are
NUM_TOKENS = 12
OPTIONS = ["--dtype", "float32", "--chunk-tokens", "16", "--kv-pool-tokens", "4096", "--transfer-page-bytes", "65536"]
TWO_RANKS = ["--tp", "2"]
ENDED_S = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_worded_model(tmp_path_factory.mktemp("worded"))


@pytest.fixture(scope="module")
def cluster(model: Path, log_dir: Path) -> Iterator[Cluster]:
    """Prefill of two ranks and of one, decode of two ranks and of one: four kinds of pairs."""
    logs = log_dir / "ranks"
    logs.mkdir()
    own = {"prefill-0": TWO_RANKS, "decode-0": TWO_RANKS}
    with Cluster(model, logs, 2, 2, OPTIONS, own_options=own) as running:
        yield running


def test_every_pair_gives_the_tokens_of_one_model(cluster: Cluster, model: Path) -> None:
    prompts = [prompt_of(length, seed=seed) for seed in range(8) for length in (1, 30, 100)]
    answers = asyncio.run(stream_all(cluster.url, prompts, NUM_TOKENS, at_once=8))
    assert [answer.error for answer in answers] == [""] * len(prompts)
    assert [answer.token_ids for answer in answers] == [reference_greedy(model, each, NUM_TOKENS) for each in prompts]
    for name, counter in (("prefill", "pushes"), ("decode", "joins")):
        for worker in cluster.workers(name):
            deadline = time.monotonic() + 60
            while not worker.value(f"sluice_engine_{counter}_total"):  # the engine tells its totals once a second
                assert time.monotonic() < deadline, f"{worker.name} took part in no {counter}"
                time.sleep(0.05)
    wait_nothing_left(cluster)


def test_a_killed_rank_ends_its_worker_once_and_others_go_on(cluster: Cluster, model: Path) -> None:
    worker = cluster.processes["decode-0"]
    ranks = dict(re.findall(r"engine started, rank (\d), pid (\d+)", worker.log.read_text()))
    assert sorted(ranks) == ["0", "1"]
    os.kill(int(ranks["1"]), signal.SIGKILL)
    assert worker.popen is not None
    assert worker.popen.wait(ENDED_S) == 1
    assert worker.log.read_text().count("rank 1 of the engine ended with status -9") == 1
    assert not Path(f"/proc/{ranks['0']}").exists(), "rank 0 goes with it"
    prompts = [prompt_of(50, seed=seed) for seed in range(20, 24)]
    answers = asyncio.run(stream_all(cluster.url, prompts, NUM_TOKENS, at_once=4))
    assert [answer.token_ids for answer in answers] == [reference_greedy(model, each, NUM_TOKENS) for each in prompts]
