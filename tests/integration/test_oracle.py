"""The oracle of correctness: greedy float32 output over the whole path equals `transformers`, token for token."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from tests.integration.client import Answer, stream_all
from tests.integration.cluster import Cluster
from tests.integration.oracle import Oracle
from tests.integration.prompts import CHAT, LONG, PLAIN

CHUNK_TOKENS = 64
MAX_NEW_TOKENS = 16
ALONE_TOKENS = 8
"""Of one request at a time: later tokens are alike, and all at once have twice as many."""
SMALL = ["--dtype", "float32", "--chunk-tokens", str(CHUNK_TOKENS)]
BOUNDARIES = (1, 2, *(n * CHUNK_TOKENS + by for n in (1, 2, 3) for by in (-1, 0, 1)), 250)


@pytest.fixture(
    scope="module", params=[(1, 1, True), (2, 2, True), (1, 1, False)], ids=["1P1D", "2P2D", "no-prefix-cache"]
)
def cluster(request: pytest.FixtureRequest, model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    """One running cluster for each shape."""
    prefill, decode, prefix_cache = request.param
    options = [*SMALL, *([] if prefix_cache else ["--no-prefix-cache"])]
    logs = log_dir / f"{prefill}p{decode}d-{prefix_cache}"
    logs.mkdir()
    with Cluster(model_dir, logs, prefill, decode, options) as running:
        yield running


def prompts_of(oracle: Oracle, num_texts: int | None = None) -> list[tuple[int, ...]]:
    """Chat and plain prompts, all or so many of each, then one text cut to every length around a boundary."""
    long = oracle.ids(LONG)
    assert len(long) >= max(BOUNDARIES)
    chat = [oracle.chat_ids(text) for text in CHAT[:num_texts]]
    plain = [oracle.ids(text) for text in PLAIN[:num_texts]]
    return chat + plain + [long[:length] for length in BOUNDARIES]


def check(
    oracle: Oracle, prompts: Sequence[tuple[int, ...]], answers: Sequence[Answer], num_tokens: int = MAX_NEW_TOKENS
) -> None:
    """Every answer equals the oracle's: ids, text, count, reason."""
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = oracle.generate(prompt, num_tokens, guess=answer.token_ids)
        assert not answer.error
        assert answer.token_ids == expected, f"prompt of {len(prompt)} tokens"
        assert answer.counts == list(range(1, len(expected) + 1))
        assert answer.text == oracle.text(expected)
        assert answer.finish_reason == ("stop" if oracle.is_end(expected[-1]) else "length")


def test_one_at_a_time_equals_transformers(cluster: Cluster, oracle: Oracle) -> None:
    """Every text in the plain shape. In the others, where two texts of a kind go this way, all go at once below: what
    a prompt says is nothing to a shape, how long it is and what of it is cached may be."""
    plain_shape = cluster.prefill == 1 and "--no-prefix-cache" not in cluster.worker_options
    prompts = prompts_of(oracle, None if plain_shape else 2)
    check(oracle, prompts, asyncio.run(stream_all(cluster.url, prompts, ALONE_TOKENS, at_once=1)), ALONE_TOKENS)


def test_thirty_two_at_once_equal_transformers(cluster: Cluster, oracle: Oracle) -> None:
    prompts = prompts_of(oracle)
    assert len(prompts) >= 32
    check(oracle, prompts, asyncio.run(stream_all(cluster.url, prompts, MAX_NEW_TOKENS, at_once=32)))


def test_prompt_logprobs_equal_transformers_whatever_is_cached(cluster: Cluster, oracle: Oracle) -> None:
    """They come from the prefill worker, over several chunks, with the prompt cached and not."""
    ids = oracle.ids(LONG)[:150]
    expected = oracle.logprobs(ids)
    (model,) = httpx.get(f"{cluster.url}/v1/models", timeout=60).json()["data"]
    wanted = {"prompt_logprobs": 2, "echo": True, "logprobs": 1}
    body = {"model": model["id"], "prompt": ids, "max_tokens": 3, "temperature": 0} | wanted
    for _ in range(2):
        answer = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=200).raise_for_status().json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        choice = answer["choices"][0]
        assert choice["prompt_logprobs"][0] is None
        for at, shown in enumerate(choice["prompt_logprobs"][1:], start=1):
            row, own = expected[at - 1], shown[str(ids[at])]
            assert own["logprob"] == pytest.approx(float(row[ids[at]]), abs=2e-3)
            likeliest = max(shown.values(), key=lambda one: one["logprob"])
            assert likeliest["logprob"] == pytest.approx(float(row.max()), abs=2e-3)
            assert likeliest["rank"] == 1
        values = choice["logprobs"]["token_logprobs"]
        assert len(values) == len(ids) + 3
        assert values[1 : len(ids)] == [
            shown[str(token)]["logprob"] for token, shown in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)
        ]


def test_the_same_prompt_again_hits_the_prefix_cache_and_answers_the_same(cluster: Cluster, oracle: Oracle) -> None:
    prompts = [oracle.ids(LONG)[:150]] * 6
    check(oracle, prompts, asyncio.run(stream_all(cluster.url, prompts, MAX_NEW_TOKENS, at_once=3)))


def test_a_guess_tells_the_oracle_nothing(oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a wrong token, nor an end too early or too late."""
    monkeypatch.setattr(oracle, "_kept", tmp_path)
    prompt = oracle.chat_ids(CHAT[0])
    answer = oracle.generate(prompt, MAX_NEW_TOKENS)
    assert len(answer) < MAX_NEW_TOKENS, "it ends with EOS"
    for guess in (answer, [*answer[:2], answer[0], *answer[3:]], answer[:-1], [*answer, *answer[:1]]):
        for kept in tmp_path.iterdir():
            kept.unlink()
        assert oracle.generate(prompt, MAX_NEW_TOKENS, guess=guess) == answer
