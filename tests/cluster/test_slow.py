"""What is slow but alive is left in peace: a model that loads for a minute, a prompt that is one step of half a minute.

Both are made slow by what makes them slow in life, too little CPU: the prefill worker's limit is a twentieth of a core.
"""

import random
import time
from datetime import datetime

import httpx
import pytest

from tests.cluster.conftest import Release
from tests.cluster.kube import Kube, Manifest
from tests.integration.cluster import http_get

pytestmark = pytest.mark.slow
LOAD_S, STEP_S = 60, 30
AIM_S, ENOUGH_S = 44.0, 36.0
"""How long a prompt should take, guessed by the one before: longer than STEP_S by some way, and shorter than the 60 s
after which a step makes a worker unready."""
MOST_GROWTH = 4.0
"""Of a guess: a prompt that fits into what the limit lets through at once says little of one that does not."""
SLOW = {
    "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"cpu": "50m", "memory": "3Gi"}},
    "chunkTokens": 4096,
    "engineStallS": 60,
    "livenessBudgetSeconds": 200,
}


def became_ready(pod: Manifest) -> datetime:
    """When the pod last became Ready."""
    (condition,) = (one for one in pod["status"]["conditions"] if one["type"] == "Ready")
    assert condition["status"] == "True"
    return datetime.fromisoformat(condition["lastTransitionTime"])


def compute_s(url: str, num_tokens: int) -> float:
    """Have a prompt of so many tokens, which no cache holds, computed, and one token of output."""
    draw = random.Random(num_tokens)
    prompt = [draw.randrange(1000, 40_000) for _ in range(num_tokens)]
    began = time.monotonic()
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 1, "do_sample": False}}
    answer = httpx.post(f"{url}/generate", json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began


def steps_longer_than(kube: Kube, pod: Manifest, seconds: int) -> int:
    """From the worker's own histogram."""
    assert kube
    name = "sluice_engine_step_seconds"
    lines = http_get(f"http://{pod['status']['podIP']}:9000/metrics")[1].splitlines()
    counts = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)}
    return round(counts[f"{name}_count"] - counts[f'{name}_bucket{{le="{seconds}.0"}}'])


def test_long_model_load_and_long_prefill_trip_no_probe(kube: Kube, installed: Release) -> None:
    before = installed.values.get("prefill", {})
    installed.upgrade(prefill=SLOW)
    try:
        (pod,) = kube.pods("prefill")
        started = datetime.fromisoformat(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
        ready = became_ready(pod)
        assert (ready - started).total_seconds() > LOAD_S, "the load was too quick to show anything"
        compute_slowly(kube.service_url("sluice", 8000))
        assert steps_longer_than(kube, pod, STEP_S) >= 1, "the step was too quick to show anything"
        (after,) = kube.pods("prefill")
        assert after["metadata"]["name"] == pod["metadata"]["name"]
        assert became_ready(after) == ready, "readiness flapped"
        assert kube.restarts(after["metadata"]["name"]) == 0
    finally:
        installed.values["prefill"] = before
        installed.upgrade()


def compute_slowly(url: str) -> None:
    """One prompt after the other, each longer."""
    num_tokens = 48
    while (took_s := compute_s(url, num_tokens)) < ENOUGH_S:
        num_tokens = round(num_tokens * min(MOST_GROWTH, AIM_S / took_s))
