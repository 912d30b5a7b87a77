"""Log-probabilities of prompts: what transformers says of them, however the prompt was computed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from services.common import ipc
from services.common.prompt_logprobs import PromptScores, ScoredToken
from services.common.request import SamplingParams
from services.engine import prompt_scoring
from services.engine.model_runner import SampledStep
from services.engine.models.generic import GenericDecoder
from tests.engine.driver import GREEDY, Driver
from tests.engine.tiny import prompt_of, reference_greedy, reference_logits

TOP = 4


def asked(num_top: int = TOP, **params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "num_prompt_logprobs": num_top, **params})


def scores_of(driver: Driver, job_id: int, num_tokens: int, num_top: int = TOP) -> list[ScoredToken]:
    """All that was said of a job, chunk after chunk."""
    scores = PromptScores(num_tokens, num_top)
    for step in driver.said(ipc.StepDone):
        for of_job, part in step.prompt_logprobs:
            if of_job == job_id:
                scores.take(part)
    return list(scores.whole())


def assert_exact(folder: Path, prompt: tuple[int, ...], found: list[ScoredToken], num_top: int = TOP) -> None:
    expected = reference_logits(folder, list(prompt)).log_softmax(-1)
    assert len(found) == len(prompt) - 1
    for position, one in enumerate(found, start=1):
        row = expected[position - 1]
        assert one.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert one.rank == int((row > row[prompt[position]]).sum()) + 1
        top = row.topk(num_top)
        assert [token for token, _ in one.top] == top.indices.tolist()
        assert [value for _, value in one.top] == pytest.approx(top.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 64])
@pytest.mark.parametrize("num_top", [0, TOP])
def test_they_equal_transformers_whatever_the_chunks(llama: Path, chunk_tokens: int, num_top: int) -> None:
    driver, prompt = Driver(llama, chunk_tokens=chunk_tokens), prompt_of(40)
    admit = driver.admit(prompt, 3, sampling=asked(num_top))
    beside = driver.admit(prompt_of(21), 6)
    assert driver.outputs(beside, admit)[1] == reference_greedy(llama, prompt, 3)
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt), num_top), num_top)
    driver.check()


def test_a_cached_prefix_is_computed_again(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(40)
    driver.run(driver.admit(prompt, 2))
    admit = driver.admit(prompt, 2, sampling=asked())
    driver.run(admit)
    assert driver.said(ipc.Admitted)[-1].cached_tokens == 0
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))
    again = driver.admit(prompt, 2)
    driver.run(again)
    assert driver.said(ipc.Admitted)[-1].cached_tokens > 0  # what was computed twice is kept once
    driver.check()


def test_only_the_prompt_is_scored_where_output_was_given(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(23)
    output = reference_greedy(llama, prompt, 12)
    admit = driver.admit(prompt, 12, sampling=asked(), output_ids=ipc.pack_ids(output[:8]))
    driver.run(admit)
    assert driver.tokens[admit.job_id, 0] == output[8:]
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))


def test_choices_share_what_is_said_of_their_prompt(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(30)
    admit = driver.admit(prompt, 3, sampling=asked(temperature=1.0), choices=(0, 1))
    driver.run(admit)
    said = [part for step in driver.said(ipc.StepDone) for _, part in step.prompt_logprobs]
    assert sum(part.end - part.first for part in said) == len(prompt) - 1
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))


def test_they_are_said_of_a_job_that_ends_with_its_first_token(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(30)
    admit = driver.admit(prompt, 1, sampling=asked())
    driver.run(admit)
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))


def test_they_are_read_once_the_device_has_been_waited_for(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where what is copied to the host is anything before."""
    waited: list[SampledStep] = []
    token_ids, prompt_scores = SampledStep.token_ids, SampledStep.prompt_scores

    def wait(step: SampledStep) -> list[int]:
        waited.append(step)
        return token_ids(step)

    def read(step: SampledStep) -> list[prompt_scoring.ChunkScores]:
        assert any(step is one for one in waited)
        return prompt_scores(step)

    monkeypatch.setattr(SampledStep, "token_ids", wait)
    monkeypatch.setattr(SampledStep, "prompt_scores", read)
    driver, prompt = Driver(llama), prompt_of(40)
    admit = driver.admit(prompt, 3, sampling=asked())
    driver.run(admit)
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))


def test_a_prompt_of_one_token_has_none(llama: Path) -> None:
    driver = Driver(llama)
    admit = driver.admit((5,), 2, sampling=asked())
    driver.run(admit)
    assert scores_of(driver, admit.job_id, 1) == []


def test_logits_are_made_a_block_at_a_time(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_scoring, "_BLOCK_LOGITS", 1000)  # four rows of this vocabulary
    driver, prompt = Driver(llama, chunk_tokens=64), prompt_of(50)
    rows: list[int] = []
    made = prompt_scoring._score_rows

    def note(logits: torch.Tensor, *rest: Any) -> Any:  # noqa: ANN401
        rows.append(len(logits))
        return made(logits, *rest)

    monkeypatch.setattr(prompt_scoring, "_score_rows", note)
    admit = driver.admit(prompt, 2, sampling=asked())
    driver.run(admit)
    assert max(rows) == 4
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))


@pytest.mark.parametrize("family", ["gemma3", "gpt-neox"])
def test_no_family_makes_logits_of_a_whole_chunk(
    family: str, model_of: Any, monkeypatch: pytest.MonkeyPatch  # noqa: ANN401
) -> None:  # fmt: skip
    monkeypatch.setattr(prompt_scoring, "_BLOCK_LOGITS", 1000)
    folder, prompt = model_of(family), prompt_of(50)
    driver = Driver(folder, chunk_tokens=64)
    rows: list[int] = []
    head = GenericDecoder.head

    def note(self: GenericDecoder, hidden: torch.Tensor) -> torch.Tensor:
        logits = head(self, hidden)
        rows.append(len(logits))
        return logits

    monkeypatch.setattr(GenericDecoder, "head", note)
    admit = driver.admit(prompt, 2, sampling=asked())
    driver.run(admit)
    assert max(rows) == 4
    assert_exact(folder, prompt, scores_of(driver, admit.job_id, len(prompt)))


def test_a_hand_over_says_them_before_it_holds(llama: Path) -> None:
    driver, prompt = Driver(llama), prompt_of(40)
    admit = driver.admit(prompt, 5, sampling=asked(), hand_over=True)
    plain = driver.admit(prompt, 5, sampling=GREEDY, hand_over=True)
    driver.run(admit, plain)
    assert_exact(llama, prompt, scores_of(driver, admit.job_id, len(prompt)))
    driver.run(ipc.Release(admit.job_id), ipc.Release(plain.job_id))
    driver.check()
