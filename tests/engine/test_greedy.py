"""Greedy float32 output equals transformers' token for token, however prompts are cut, batched and cached."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.driver import Driver
from tests.engine.tiny import EOS, FAMILIES, prompt_of, reference_greedy

CHUNK = 16
BOUNDARIES = [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5, 100]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_transformers(family: str, model_of: Callable[[str], Path]) -> None:
    folder = model_of(family)
    driver = Driver(folder)
    for length in (1, CHUNK, 60):
        (tokens,) = driver.outputs(driver.admit(prompt_of(length), 24, stop_token_ids=(EOS,)))
        assert tokens == reference_greedy(folder, prompt_of(length), 24)
    driver.check()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_prompts_around_chunk_boundaries(llama: Path, prefix_cache: bool, depth: int) -> None:
    driver = Driver(llama, prefix_cache=prefix_cache, pipeline_depth=depth)
    for length in BOUNDARIES:
        (tokens,) = driver.outputs(driver.admit(prompt_of(length), 12, stop_token_ids=(EOS,)))
        assert tokens == reference_greedy(llama, prompt_of(length), 12), f"prompt of {length}"
    driver.check()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_thirty_two_prompts_at_once(llama: Path, prefix_cache: bool, depth: int) -> None:
    driver = Driver(llama, prefix_cache=prefix_cache, pipeline_depth=depth)
    prompts = [prompt_of(BOUNDARIES[i % len(BOUNDARIES)], seed=i) for i in range(32)]
    commands = [driver.admit(prompt, 10 + i % 5, stop_token_ids=(EOS,)) for i, prompt in enumerate(prompts)]
    outputs = driver.outputs(*commands)
    for i, (prompt, tokens) in enumerate(zip(prompts, outputs, strict=True)):
        assert tokens == reference_greedy(llama, prompt, 10 + i % 5), f"prompt {i} of {len(prompt)}"
    driver.check()


def test_a_cached_prefix_gives_the_same_tokens_and_is_counted(llama: Path) -> None:
    driver = Driver(llama)
    shared = prompt_of(40)
    for tail in (prompt_of(9, seed=1), prompt_of(9, seed=2)):
        (tokens,) = driver.outputs(driver.admit(shared + tail, 8, stop_token_ids=(EOS,)))
        assert tokens == reference_greedy(llama, shared + tail, 8)
    assert [e.cached_tokens for e in driver.events if hasattr(e, "cached_tokens")] == [0, 40]


def test_the_last_prompt_token_is_computed_even_when_all_is_cached(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(33)
    first, second = (driver.outputs(driver.admit(prompt, 8))[0] for _ in range(2))
    assert first == second == reference_greedy(llama, prompt, 8)
    assert [e.cached_tokens for e in driver.events if hasattr(e, "cached_tokens")] == [0, 32]


def test_outputs_are_cached_for_the_next_turn_of_a_conversation(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(20)
    (tokens,) = driver.outputs(driver.admit(prompt, 10))
    longer = prompt + tuple(tokens) + prompt_of(5, seed=3)
    assert driver.outputs(driver.admit(longer, 6))[0] == reference_greedy(llama, longer, 6)
    # The last output was never an input, so its KV does not exist.
    assert [e.cached_tokens for e in driver.events if hasattr(e, "cached_tokens")] == [0, 29]


def test_output_ids_of_an_earlier_attempt_are_continued(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(21)
    expected = reference_greedy(llama, prompt, 20)
    command = driver.admit(prompt, 20, output_ids=_pack(expected[:7]))
    assert driver.outputs(command)[0] == expected[7:]
    assert driver.first_index[command.job_id, 0] == 7


def test_bfloat16_runs(llama: Path) -> None:
    driver = Driver(llama, dtype="bfloat16")
    (tokens,) = driver.outputs(driver.admit(prompt_of(30), 8))
    assert len(tokens) == 8
    driver.check()


def _pack(ids: list[int]) -> bytes:
    from services.common.ipc import pack_ids

    return pack_ids(ids)
