"""The sampler: what each parameter does, and that draws depend on seed, choice and position alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.common.ipc import pack_ids
from services.common.request import LengthPenalty, PromptPenalty, SamplingParams
from services.engine.drawing import draw
from services.engine.noise import gumbel, noise_key
from tests.engine.driver import GREEDY, Driver
from tests.engine.tiny import EOS, VOCAB, prompt_of, reference_greedy, reference_logits

HOT = SamplingParams(temperature=1.5, seed=7)


def frequencies(logits: list[float], num_draws: int = 20_000, **params: Any) -> list[float]:
    """Shares of each token among draws with different keys."""
    rows = torch.tensor([logits]).repeat(num_draws, 1)
    keys = [noise_key(3, 0, position) for position in range(num_draws)]
    ids = draw(rows, [SamplingParams(**params)] * num_draws, keys)
    return [float(x) for x in torch.bincount(ids, minlength=len(logits)) / num_draws]


def test_draws_follow_the_tempered_softmax() -> None:
    logits = [1.0, 2.0, 0.0, -1.0]
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.tensor(logits).div(temperature).softmax(-1).tolist()
        assert frequencies(logits, temperature=temperature) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 100}, {0, 1, 2, 3}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 1e-9}, {1}),
        ({"min_p": 0.3}, {0, 1}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.95}, {0, 1, 2}),
    ],
)
def test_filters_keep_the_likely_and_renormalise(params: dict[str, Any], kept: set[int]) -> None:
    logits = [1.0, 2.0, 0.0, -1.0]  # probabilities 0.24, 0.64, 0.09, 0.03
    masked = torch.full((4,), -torch.inf)
    for token in kept:
        masked[token] = logits[token]
    assert frequencies(logits, **params) == pytest.approx(masked.softmax(-1).tolist(), abs=0.015)


def test_a_nucleus_wider_than_the_first_candidates_is_found() -> None:
    logits = torch.zeros(1, 1000).repeat(4000, 1)
    keys = [noise_key(1, 0, position) for position in range(4000)]
    ids = draw(logits, [SamplingParams(top_p=0.9)] * 4000, keys)
    assert 850 < len(set(ids.tolist())) <= 900


def test_noise_is_gumbel_and_differs_by_seed_choice_and_position() -> None:
    keys = [noise_key(5, 0, 0), noise_key(6, 0, 0), noise_key(5, 1, 0), noise_key(5, 0, 1), noise_key(-5, 0, 1)]
    noise = gumbel(np.array(keys, np.uint64), np.arange(50_000, dtype=np.uint32))
    assert np.isfinite(noise).all()
    assert noise.mean(1) == pytest.approx([0.5772] * 5, abs=0.03)
    assert noise.var(1) == pytest.approx([np.pi**2 / 6] * 5, abs=0.06)
    assert np.abs(np.corrcoef(noise) - np.eye(5)).max() < 0.02


def test_the_same_seed_gives_the_same_tokens_in_any_batch(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(20)
    (alone,) = driver.outputs(driver.admit(prompt, 12, sampling=HOT))
    others = [driver.admit(prompt_of(9, seed=i), 12, sampling=SamplingParams(seed=i)) for i in range(5)]
    together = driver.outputs(*others, driver.admit(prompt, 12, sampling=HOT))[-1]
    assert alone == together
    assert alone != reference_greedy(llama, prompt, 12)


def test_a_retry_with_output_ids_continues_as_the_first_attempt_did(llama: Path) -> None:
    sampling = SamplingParams(
        temperature=1.2, seed=11, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.4, top_p=0.9,
        prompt_penalty=PromptPenalty.ALL, length_penalty=LengthPenalty(2, 1.1),
        bad_sequences=((7,), (11, 12), (3, 4, 5), tuple(prompt_of(3))),
    )  # fmt: skip
    prompt = prompt_of(18)
    driver = Driver(llama)
    (whole,) = driver.outputs(driver.admit(prompt, 16, sampling=sampling, stop_token_ids=(EOS,)))
    assert len(whole) > 5
    for cut in (1, 5, len(whole) - 1):
        retry = driver.admit(prompt, 16, sampling=sampling, output_ids=pack_ids(whole[:cut]), stop_token_ids=(EOS,))
        assert driver.outputs(retry)[0] == whole[cut:]


def test_choices_of_one_prompt_differ_and_repeat(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(20)
    both = driver.admit(prompt, 10, sampling=HOT, choices=(0, 1))
    driver.run(both)
    zero, one = driver.tokens[both.job_id, 0], driver.tokens[both.job_id, 1]
    assert zero != one
    only = driver.admit(prompt, 10, sampling=HOT, choices=(1,))
    driver.run(only)
    assert driver.tokens[only.job_id, 1] == one
    driver.check()


def test_repetition_penalty_equals_transformers(llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    prompt = prompt_of(25)
    model = AutoModelForCausalLM.from_pretrained(llama)
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=15, do_sample=False, repetition_penalty=1.8,
        pad_token_id=0,
    )  # fmt: skip
    driver = Driver(llama)
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.8)
    (tokens,) = driver.outputs(driver.admit(prompt, 15, sampling=sampling, stop_token_ids=(EOS,)))
    assert tokens == expected[0, len(prompt) :].tolist()


def test_frequency_penalty_counts_outputs_only(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(12)
    (tokens,) = driver.outputs(
        driver.admit(prompt, 40, sampling=SamplingParams(temperature=0.0, frequency_penalty=1000.0))
    )
    assert len(set(tokens)) == 40  # no token comes twice
    assert tokens[0] == reference_greedy(llama, prompt, 1)[0]


def test_bias_and_allowed_ids_steer_greedy(llama: Path) -> None:
    driver = Driver(llama)
    biased = driver.admit(prompt_of(9), 5, sampling=SamplingParams(temperature=0.0, logit_bias={42: 1e4}))
    allowed = driver.admit(prompt_of(9), 5, sampling=SamplingParams(temperature=0.0, allowed_token_ids=(3, 5)))
    plain = driver.admit(prompt_of(9), 5)
    first, second, third = driver.outputs(biased, allowed, plain)
    assert first == [42] * 5
    assert set(second) <= {3, 5}
    assert third == reference_greedy(llama, prompt_of(9), 5)


def test_min_new_tokens_keeps_stop_ids_away_until_then(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(9)
    stop = reference_greedy(llama, prompt, 1)[0]
    (at_once,) = driver.outputs(driver.admit(prompt, 8, stop_token_ids=(stop,)))
    assert at_once == [stop]
    (later,) = driver.outputs(driver.admit(prompt, 8, stop_token_ids=(stop,), min_new_tokens=4))
    assert stop not in later[:4]


def test_logprobs_are_those_of_the_raw_logits(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(14)
    sampling = SamplingParams(temperature=0.7, seed=3, num_logprobs=4, logit_bias={1: 5.0})
    command = driver.admit(prompt, 6, sampling=sampling)
    (tokens,) = driver.outputs(command)
    expected = reference_logits(llama, [*prompt, *tokens]).log_softmax(-1)[len(prompt) - 1 : -1]
    logprobs = driver.logprobs[command.job_id, 0]
    assert [each.token_id for each in logprobs] == tokens
    for each, row in zip(logprobs, expected, strict=True):
        assert each.logprob == pytest.approx(float(row[each.token_id]), abs=1e-4)
        assert [token for token, _ in each.top] == row.topk(4).indices.tolist()


def test_greedy_rows_are_not_disturbed_by_others(llama: Path) -> None:
    driver = Driver(llama)
    wanted = SamplingParams(temperature=0.0, num_logprobs=0)
    commands = [
        driver.admit(prompt_of(10 + i), 8, sampling=s) for i, s in enumerate((GREEDY, HOT, wanted, HOT, GREEDY))
    ]
    outputs = driver.outputs(*commands)
    for i in (0, 2, 4):
        assert outputs[i] == reference_greedy(llama, prompt_of(10 + i), 8)
    assert all(0 <= token < VOCAB for tokens in outputs for token in tokens)


def test_sequences_that_must_not_come_are_avoided_where_they_would(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(20)
    free = reference_greedy(llama, prompt, 10)
    one, two, three = (free[4],), tuple(free[2:4]), tuple(free[5:8])
    for bad in (one, two, three):
        sampling = SamplingParams(temperature=0.0, bad_sequences=(bad, (1, 2, 3, 4)))
        (tokens,) = driver.outputs(driver.admit(prompt, 10, sampling=sampling))
        at = next(i for i in range(10) if tuple(free[i + 1 - len(bad) : i + 1]) == bad)
        assert tokens[:at] == free[:at]
        logits = reference_logits(llama, [*prompt, *free[:at]])[-1].clone()
        logits[free[at]] = -torch.inf
        assert tokens[at] == int(logits.argmax())
        assert all(tuple(tokens[i : i + len(bad)]) != bad for i in range(10))


def test_a_sequence_is_matched_within_the_output_alone(llama: Path) -> None:
    prompt = prompt_of(20)
    free = reference_greedy(llama, prompt, 4)
    sampling = SamplingParams(temperature=0.0, bad_sequences=((prompt[-1], free[0]),))
    driver = Driver(llama)
    assert driver.outputs(driver.admit(prompt, 4, sampling=sampling)) == [free]


def test_the_length_penalty_equals_transformers(llama: Path) -> None:
    from transformers import AutoModelForCausalLM

    prompt = prompt_of(25)
    model = AutoModelForCausalLM.from_pretrained(llama)
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False, pad_token_id=0,
        exponential_decay_length_penalty=(4, 1.15),
    )[0, len(prompt) :].tolist()  # fmt: skip
    assert 4 < len(expected) < 60
    sampling = SamplingParams(temperature=0.0, length_penalty=LengthPenalty(4, 1.15))
    driver = Driver(llama)
    assert driver.outputs(driver.admit(prompt, 60, sampling=sampling, stop_token_ids=(EOS,))) == [expected]


def test_penalties_count_of_the_prompt_what_they_are_told_to(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(30)
    first = reference_greedy(llama, prompt, 1)[0]
    mentioned = (*prompt[:5], first, *prompt[6:])  # what would come first stands in the prompt already
    first = reference_greedy(llama, mentioned, 1)[0]
    mentioned = (*mentioned[:5], first, *mentioned[6:]) if first not in mentioned else mentioned
    logits = reference_logits(llama, list(mentioned))[-1].clone()
    seen = torch.tensor(sorted(set(mentioned)))
    repeated = logits.clone()
    repeated[seen] = torch.where(logits[seen] > 0, logits[seen] / 5.0, logits[seen] * 5.0)
    subtracted = logits.clone()
    subtracted[seen] -= 500.0
    winner = int(logits.argmax())
    assert winner in mentioned
    assert winner not in (int(repeated.argmax()), int(subtracted.argmax())), "what counts of the prompt would not show"
    cases: list[tuple[PromptPenalty, dict[str, Any], torch.Tensor]] = [
        (PromptPenalty.NONE, {"repetition_penalty": 5.0, "presence_penalty": 500.0}, logits),
        (PromptPenalty.REPETITION, {"repetition_penalty": 5.0}, repeated),
        (PromptPenalty.REPETITION, {"presence_penalty": 500.0}, logits),
        (PromptPenalty.ALL, {"repetition_penalty": 5.0}, repeated),
        (PromptPenalty.ALL, {"presence_penalty": 500.0}, subtracted),
    ]
    for scope, params, expected in cases:
        sampling = SamplingParams(temperature=0.0, prompt_penalty=scope, **params)
        (tokens,) = driver.outputs(driver.admit(mentioned, 1, sampling=sampling))
        assert tokens == [int(expected.argmax())], scope


@pytest.mark.parametrize("depth", [0, 1])
def test_nothing_on_the_device_is_kept_for_a_sequence_that_is_gone(llama: Path, depth: int) -> None:
    """A runner remembers the last sequence of each row, for longer than its tokens' counts are of use."""
    driver = Driver(llama, pipeline_depth=depth)
    command = driver.admit(
        prompt_of(5), 6, sampling=SamplingParams(seed=1, presence_penalty=0.5), choices=(0, 1), stop_token_ids=(EOS,)
    )
    driver.turn(command)
    sequences = list(driver.engine.state.jobs[command.job_id].sequences.values())
    assert all(sequence.sampler_state is not None for sequence in sequences)
    driver.run()
    assert all(sequence.gone and sequence.sampler_state is None for sequence in sequences)
