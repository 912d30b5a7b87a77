"""Clients as they are: the official `openai` package, and the native wire byte for byte, against real workers."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.integration.cluster import Cluster
from tests.integration.oracle import Oracle

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    """1P1D."""
    logs = log_dir / "clients"
    logs.mkdir()
    with Cluster(model_dir, logs, worker_options=["--dtype", "float32"]) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> openai.OpenAI:
    """The official client, told nothing but the address."""
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0)


def test_openai_streams_a_chat(client: openai.OpenAI, model_dir: Path) -> None:
    stream = client.chat.completions.create(
        model=model_dir.name,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8


def test_openai_gets_choices_that_differ_and_repeat_by_seed(client: openai.OpenAI, model_dir: Path) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(
            model=model_dir.name,
            messages=[{"role": "user", "content": "Name a colour and say why you like it."}],
            n=3,
            seed=7,
            max_tokens=12,
        )
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_openai_gets_logprobs_and_stops_at_a_string(client: openai.OpenAI, model_dir: Path) -> None:
    answer = client.chat.completions.create(
        model=model_dir.name,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        logprobs=True,
        top_logprobs=2,
        stop=[" is"],
    )
    choice = answer.choices[0]
    assert choice.message.content == "The capital of France"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in choice.logprobs.content)


def test_openai_raises_its_own_errors(client: openai.OpenAI, model_dir: Path) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model=model_dir.name, prompt="Hi", temperature=-1)


def test_native_stream_is_as_its_clients_parse_it(cluster: Cluster, oracle: Oracle) -> None:
    body = {"inputs": list(oracle.chat_ids(QUESTION)), "parameters": {"do_sample": False, "max_new_tokens": 20}}
    answer = httpx.post(f"{cluster.url}/generate_stream", json=body, timeout=60)
    events = answer.content.split(b"\n\n")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert events.pop() == b""
    assert all(event.startswith(b"data:{") for event in events), "one event a line, no space after the colon, no [DONE]"
    parsed = [json.loads(event[len(b"data:") :]) for event in events]
    assert "".join(event["token"]["text"] for event in parsed) == ANSWER
    assert [event["finished"] for event in parsed] == [False] * 7 + [True]
    assert parsed[-1]["finish_reason"] == "stop"
    assert {"token", "generated_text", "finished", "finish_reason", "details", "input_usage"} <= parsed[0].keys()
    assert {"id", "text", "logprob", "special", "count_output_tokens", "prompt_tokens"} <= parsed[0]["token"].keys()
