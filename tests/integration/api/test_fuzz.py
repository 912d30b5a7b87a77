"""The OpenAPI document, explored by schemathesis, against real processes: no 5xx, and no answer that differs from it.

`make fuzz` goes on with drawn bodies for as long as it is told, after the fixed ones that CI sends.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.engine.tiny import make_worded_model
from tests.integration.cluster import Cluster
from tests.integration.leaks import wait_nothing_left
from tests.unit.api.test_tools import TOOLS_TEMPLATE

FUZZ_S = int(os.environ.get("FUZZ_S", "0"))
"""Seconds of drawn bodies; 0 sends the fixed ones alone."""
SAME = ["/", "/generate_stream", "/tokens"]
"""Paths whose bodies are those of /generate."""
FIXED = ["--phases", "examples,coverage", "--generation-deterministic", *(f"--exclude-path={path}" for path in SAME)]
DRAWN = ["--phases", "fuzzing", "--max-time", str(FUZZ_S), "--generation-database", "none"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """1P1D with a model so small that a generation takes no time, which knows tools and thoughts."""
    folder, logs = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("fuzz-logs")
    make_worded_model(folder, TOOLS_TEMPLATE, max_position_embeddings=512)
    with Cluster(folder, logs, worker_options=["--kv-pool-tokens", "8192"]) as running:
        yield running


def explore(cluster: Cluster, *options: str) -> None:
    """What a valid body may still ask for in vain (a model without tools, a prompt too long) no schema can say, so
    refusals of valid bodies are not looked at."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{cluster.url}/openapi.json", *options]
    checks = [
        "--exclude-checks",
        "positive_data_acceptance",
        "--continue-on-failure",
        "--no-color",
        "--request-timeout",
        "240",
    ]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "tests.integration.api.fuzz_hooks"}
    done = subprocess.run(command + checks, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.timeout(600)
def test_fixed_bodies_get_what_the_document_says(cluster: Cluster) -> None:
    explore(cluster, *FIXED)
    wait_nothing_left(cluster)


@pytest.mark.skipif(not FUZZ_S, reason="FUZZ_S says for how long: make fuzz")
@pytest.mark.timeout(FUZZ_S + 600)
def test_drawn_bodies_get_what_the_document_says(cluster: Cluster) -> None:
    explore(cluster, *DRAWN)
    wait_nothing_left(cluster)
