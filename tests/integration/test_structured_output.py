"""Grammars over the whole path: token 0 obeys on the prefill worker, the rest on the decode worker, whoever that is."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from services.common.request import FinishReason
from tests.engine.schemas import random_schema
from tests.integration.cluster import Cluster

OPTIONS = ["--dtype", "float32", "--reservation-lease-s", "5"]
ASK = [{"role": "user", "content": "Describe a person."}]
NUM_SCHEMAS = 6
LONG = r"([a-f]{8},){40}end"


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    logs = log_dir / "structured"
    logs.mkdir()
    with Cluster(model_dir, logs, prefill=1, decode=2, worker_options=OPTIONS) as running:
        yield running


async def chat(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    body = {"model": client.headers["x-model"], "messages": ASK, "temperature": 1.0, "max_tokens": 400, **fields}
    return await client.post("/v1/chat/completions", json=body)


def client_of(cluster: Cluster) -> httpx.AsyncClient:
    model = httpx.get(f"{cluster.url}/v1/models").json()["data"][0]["id"]
    return httpx.AsyncClient(base_url=cluster.url, timeout=120, headers={"x-model": model})


async def test_sampled_json_is_valid_across_the_hand_over(cluster: Cluster) -> None:
    schemas = [random_schema(seed) for seed in range(NUM_SCHEMAS)]
    forms = [{"type": "json_schema", "json_schema": {"name": "s", "schema": schema}} for schema in schemas]
    async with client_of(cluster) as client:
        answers = await asyncio.gather(*(chat(client, response_format=form, seed=1, n=2) for form in forms))
    ended = 0
    for schema, answer in zip(schemas, answers, strict=True):
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            if choice["finish_reason"] == FinishReason.STOP.value:
                ended += 1
                text = choice["message"]["content"]
                assert jsonschema_rs.is_valid(schema, json.loads(text), validate_formats=True), text
    assert ended > NUM_SCHEMAS


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


async def test_output_stays_valid_when_its_decode_worker_is_killed(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        running = [
            asyncio.create_task(chat(client, guided_regex=LONG, seed=seed, max_tokens=2000)) for seed in range(4)
        ]
        await asyncio.sleep(3)  # well into decoding: an answer has hundreds of tokens
        await asyncio.to_thread(cluster.processes["decode-0"].kill)
        answers = await asyncio.gather(*running)
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert all(re.fullmatch(LONG, text) for text in texts), texts
