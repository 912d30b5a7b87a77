"""Grammars over the whole path: token 0 obeys on the prefill worker, the rest on the decode worker, whoever that is.

    NUM_SCHEMAS=200 make test ARGS=tests/integration/test_structured_output.py

samples as many schemas over the hand-over, after preemptions and after decode workers are killed, which takes minutes;
without it, a few over the hand-over.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema_rs
import pytest

from services.common.request import FinishReason
from tests.engine.schemas import Schema, random_schema
from tests.integration.cluster import Cluster, Process

OPTIONS = ["--dtype", "float32", "--reservation-lease-s", "5"]
ASK = [{"role": "user", "content": "Describe a person."}]
WANTED = os.environ.get("NUM_SCHEMAS")
NUM_SCHEMAS = int(WANTED or "6")
SCHEMAS_A_KILL = 25
AT_ONCE = 8
"""So many calls of two choices each."""
TIMEOUT_S = 600 + 6 * NUM_SCHEMAS
TIGHT = [
    "--kv-pool-tokens", "640", "--max-context-tokens", "300", "--prior-output-tokens", "1", "--no-prefix-cache",
]  # fmt: skip
"""A pool into which more is let in than there is room for."""
PREEMPTIONS = "sluice_engine_preemptions_total"
NUM_DIGITS = 100
DIGITS: Schema = {
    "type": "object",
    "properties": {"digits": {"type": "string", "pattern": f"^[0-9]{{{NUM_DIGITS}}}$"}},
    "required": ["digits"],
    "additionalProperties": False,
}
"""More than 100 tokens, whatever is drawn: the demo model has no token of two digits."""
NUM_PRESSING = 4
"""Calls of two such choices each. With their prompts they come to more than 900 tokens, and three of them to 700: more
than TIGHT's pool holds. The Router lets them in together all the same, for it expects one token of each, and later
twice what it has seen. Behind shorter ones it might let them in one after the other, and preempt nothing."""
LONG = r"([a-f]{8},){16}end"
WELL_INTO = 20
"""Tokens that a worker has decoded before it is killed; an answer has many more."""


class Sample(NamedTuple):
    """What came of a schema."""

    schema: Schema
    choices: list[dict[str, Any]]


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    logs = log_dir / "structured"
    logs.mkdir()
    with Cluster(model_dir, logs, prefill=1, decode=2, worker_options=OPTIONS) as running:
        yield running


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": client.headers["x-model"], "messages": ASK, "temperature": 1.0, "max_tokens": 250, **fields}
    return await client.post("/v1/chat/completions", json=body)


def client_of(cluster: Cluster, timeout_s: float = 240) -> httpx.AsyncClient:
    model = httpx.get(f"{cluster.url}/v1/models", timeout=60).json()["data"][0]["id"]
    return httpx.AsyncClient(base_url=cluster.url, timeout=timeout_s, headers={"x-model": model})


async def sample(cluster: Cluster, seeds: Iterable[int]) -> list[Sample]:
    """Two answers to each schema, some at once."""
    some = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, schema: Schema) -> Sample:
        async with some:
            return await two_answers(client, schema, seed=1)

    async with client_of(cluster, TIMEOUT_S) as client:
        return list(await asyncio.gather(*(one(client, random_schema(seed)) for seed in seeds)))


async def two_answers(client: httpx.AsyncClient, schema: Schema, seed: int) -> Sample:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = await chat(client, response_format=form, seed=seed, n=2)
    assert answer.status_code == 200, answer.text
    return Sample(schema, answer.json()["choices"])


async def press(cluster: Cluster) -> list[Sample]:
    """Answers that outgrow a TIGHT decode worker's pool, until it has preempted some of them."""
    samples: list[Sample] = []
    async with client_of(cluster, TIMEOUT_S) as client, asyncio.timeout(TIMEOUT_S / 2):
        while not cluster.processes["decode-0"].value(PREEMPTIONS):
            samples += await asyncio.gather(*(two_answers(client, DIGITS, seed) for seed in range(NUM_PRESSING)))
    return samples


def decoding(cluster: Cluster) -> Process:
    """A decode worker in the middle of outputs; waits until one is."""
    before = {worker.name: worker.value("sluice_output_tokens_total") for worker in cluster.workers("decode")}
    deadline = time.monotonic() + 120
    while True:
        for worker in cluster.workers("decode"):
            if worker.value("sluice_output_tokens_total") - before[worker.name] >= WELL_INTO:
                return worker
        assert time.monotonic() < deadline, "nobody decodes"
        time.sleep(0.02)


def assert_valid(samples: list[Sample]) -> None:
    """All that came to its end; most do, and what was cut off by its limit is no JSON yet."""
    ended = 0
    for schema, choices in samples:
        for choice in choices:
            assert choice["finish_reason"] in ("stop", "length")
            if choice["finish_reason"] == FinishReason.STOP.value:
                ended += 1
                text = choice["message"]["content"]
                assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), (schema, text)
    assert ended > len(samples), "two answers to each schema, and fewer than half of them came to an end"


async def assert_long_outputs(client: httpx.AsyncClient) -> None:
    """Some long ones at once, which keep to their grammar to its end."""
    answers = await asyncio.gather(*(chat(client, guided_regex=LONG, seed=seed, n=2) for seed in range(2)))
    assert [answer.status_code for answer in answers] == [200] * len(answers), answers[0].text
    texts = [choice["message"]["content"] for answer in answers for choice in answer.json()["choices"]]
    assert all(re.fullmatch(LONG, text) for text in texts), texts


@pytest.mark.timeout(TIMEOUT_S)
async def test_sampled_json_is_valid_across_the_hand_over(cluster: Cluster) -> None:
    assert_valid(await sample(cluster, range(NUM_SCHEMAS)))


@pytest.mark.timeout(TIMEOUT_S)
async def test_sampled_json_is_valid_after_preemptions(model_dir: Path, tmp_path: Path) -> None:
    with Cluster(model_dir, tmp_path, worker_options=[*OPTIONS, *TIGHT]) as small:
        async with asyncio.TaskGroup() as group:
            pressing = group.create_task(press(small))
            await asyncio.to_thread(decoding, small)  # what comes from now on is preempted first
            samples = await sample(small, range(NUM_SCHEMAS))
        assert_valid(samples)
        for answers in pressing.result():
            assert [choice["finish_reason"] for choice in answers.choices] == ["stop"] * 2
        assert_valid(pressing.result())


@pytest.mark.parametrize(
    ("field", "value", "why"), [("guided_regex", "(a", "parenthesis"), ("guided_grammar", "root ::= x", "not defined")]
)
async def test_a_grammar_that_engines_refuse_is_the_clients_error(
    cluster: Cluster, field: str, value: str, why: str
) -> None:
    async with client_of(cluster) as client:
        answer = await chat(client, **{field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert why in error["message"]


@pytest.mark.skipif(WANTED is None, reason="NUM_SCHEMAS says how many")
@pytest.mark.timeout(TIMEOUT_S)
async def test_sampled_json_is_valid_when_its_decode_worker_is_killed(cluster: Cluster) -> None:
    for first in range(0, NUM_SCHEMAS, SCHEMAS_A_KILL):
        sampling = asyncio.create_task(sample(cluster, range(first, min(first + SCHEMAS_A_KILL, NUM_SCHEMAS))))
        victim = await asyncio.to_thread(decoding, cluster)
        await asyncio.to_thread(victim.kill)
        assert_valid(await sampling)
        victim.start()
        await asyncio.to_thread(cluster.wait_ready)


async def test_output_stays_valid_when_its_decode_worker_is_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        running = asyncio.create_task(assert_long_outputs(client))
        victim = await asyncio.to_thread(decoding, cluster)
        assert not running.done(), "too short to be disturbed"
        await asyncio.to_thread(victim.kill)
        await running
