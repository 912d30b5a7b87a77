"""Preempted sequences whose KV waits in host memory: the same tokens as without, and nothing left in any state."""

import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from services.common import ipc
from services.common.prompt_logprobs import PromptScores
from services.common.request import SamplingParams
from services.engine import host_rule, host_setup
from services.engine.config import ConfigError
from services.engine.host_rule import Costs, costs_of, pays, weights_of_a_token
from services.engine.models.config import read_model_config
from tests.engine.driver import Driver
from tests.engine.tiny import VOCAB, prompt_of, reference_greedy

PAGE_TOKENS = 8
GIB = 1 << 30


@pytest.fixture(autouse=True)
def _everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny sequences of a tiny model are sooner computed; here they are kept, in small pages."""
    monkeypatch.setattr(host_setup, "PAGE_TOKENS", PAGE_TOKENS)
    monkeypatch.setattr(host_rule, "_SPEEDS", dict.fromkeys(["cpu", "cuda"], host_rule._Speeds(1e12, 0.0, 1.0)))


def driver_of(folder: Path, num_pages: int = 64, **changes: Any) -> Driver:
    """An engine with a small pool and `num_pages` of host memory."""
    page_gib = PAGE_TOKENS * 3 * 2 * 2 * 8 * 4 / GIB
    return Driver(folder, host_cache_gib=num_pages * page_gib, **({"num_kv_tokens": 170} | changes))


def preempt(driver: Driver, num_tokens: int = 60) -> tuple[ipc.Admit, ipc.Preempted]:
    """Fill the pool until the first of three prompts, which arrived last, is preempted; the others run to their end."""
    commands = [driver.admit(prompt_of(20, seed=i), num_tokens, arrival=float(-i)) for i in range(3)]
    driver.turn(*commands)
    while not driver.said(ipc.Preempted):
        driver.turn()
    (event,) = driver.said(ipc.Preempted)
    assert event.job_id == commands[0].job_id
    return commands[0], event


def resume(driver: Driver, command: ipc.Admit, event: ipc.Preempted, num_tokens: int = 60) -> ipc.Admit:
    """What the control process sends: the prompt with what it has."""
    produced = ipc.pack_ids(driver.tokens[event.job_id, event.choice])
    prompt = ipc.unpack_ids(command.prompt_ids)
    changes: dict[str, Any] = {"sampling": command.sampling, "choices": (event.choice,), "arrival": command.arrival}
    return driver.admit(prompt, num_tokens, output_ids=produced, resumes=event.job_id, **changes)


def evict_all(driver: Driver) -> None:
    """Drop the prefix cache, which otherwise still has what was preempted."""
    driver.outputs(driver.admit(prompt_of(169, seed=77), 1))


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_preempted_sequence_comes_back_from_the_host_with_the_same_tokens(
    llama: Path, depth: int, prefix_cache: bool
) -> None:
    driver = driver_of(llama, pipeline_depth=depth, prefix_cache=prefix_cache)
    command, event = preempt(driver)
    driver.run()
    evict_all(driver)
    resumed = resume(driver, command, event)
    driver.run(resumed)
    assert driver.tokens[command.job_id, 0] + driver.tokens[resumed.job_id, 0] == reference_greedy(
        llama, prompt_of(20), 60
    )
    counters = driver.engine.state.counters
    num_tokens = 20 + len(driver.tokens[command.job_id, 0])
    assert (counters.kept_sequences, counters.restored_sequences) == (1, 1)
    assert counters.kept_tokens == num_tokens - 1 >= counters.restored_tokens > num_tokens - 1 - 20
    computed = [e.num_prefill_tokens for e in driver.said(ipc.StepDone) if e.prefilling and e.prefilling[0][0] == 5]
    assert computed == [1], "what was kept was computed again"
    assert driver.said(ipc.Admitted)[-1].cached_tokens == num_tokens - 1
    driver.check()


def test_what_the_prefix_cache_still_has_is_not_copied_back(llama: Path) -> None:
    driver = driver_of(llama)
    command, event = preempt(driver)
    driver.run()
    resumed = resume(driver, command, event)
    driver.turn(resumed)
    held = driver.engine.state.jobs[resumed.job_id].holding
    assert held is not None
    num_tokens = 20 + len(driver.tokens[command.job_id, 0]) - 1
    shared = held.num_shared
    driver.run()
    assert driver.engine.state.counters.restored_tokens == num_tokens - shared < num_tokens
    assert driver.tokens[command.job_id, 0] + driver.tokens[resumed.job_id, 0] == reference_greedy(
        llama, prompt_of(20), 60
    )
    driver.check()


def test_sampled_sequences_continue_as_if_nothing_had_happened(llama: Path) -> None:
    sampling = SamplingParams(temperature=0.9, seed=7, presence_penalty=0.4)
    alone = Driver(llama)
    expected = alone.outputs(alone.admit(prompt_of(20), 60, sampling=sampling))[0]
    driver = driver_of(llama)
    first = driver.admit(prompt_of(20), 60, arrival=9.0, sampling=sampling)
    driver.turn(first, *(driver.admit(prompt_of(20, seed=i), 60, arrival=0.0) for i in (1, 2)))
    while not driver.said(ipc.Preempted):
        driver.turn()
    driver.run()
    evict_all(driver)
    resumed = resume(driver, first, driver.said(ipc.Preempted)[0])
    driver.run(resumed)
    assert driver.tokens[first.job_id, 0] + driver.tokens[resumed.job_id, 0] == expected
    assert driver.engine.state.counters.restored_sequences == 1
    driver.check()


def test_an_abort_while_it_is_out_drops_what_is_kept(llama: Path) -> None:
    driver = driver_of(llama)
    command, _ = preempt(driver)
    assert driver.engine.state.usage().host_pages_in_use > 0
    driver.turn(ipc.Abort(command.job_id))
    assert driver.engine.state.usage().host_pages_in_use == 0
    driver.run()
    driver.check()


def test_a_finish_that_crossed_with_the_preemption_drops_it_too(llama: Path) -> None:
    driver = driver_of(llama)
    command, _ = preempt(driver)
    driver.run(ipc.Finish(command.job_id, 0, 3))
    driver.check()


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_an_abort_on_its_way_back_leaves_nothing(llama: Path, turns: int) -> None:
    driver = driver_of(llama)
    command, event = preempt(driver)
    driver.run()
    evict_all(driver)
    resumed = resume(driver, command, event)
    driver.turn(resumed)
    for _ in range(turns):
        driver.turn()
    driver.run(ipc.Abort(resumed.job_id))
    driver.check()


def test_a_deferred_one_keeps_its_pages_until_there_is_room(llama: Path) -> None:
    driver = driver_of(llama)
    command, event = preempt(driver)
    early = resume(driver, command, event)
    driver.turn(early)
    assert [e.job_id for e in driver.said(ipc.Deferred)] == [early.job_id]
    driver.run()
    evict_all(driver)
    late = resume(driver, command, event)
    driver.run(late)
    assert driver.engine.state.counters.restored_sequences == 1
    driver.check()


def test_preempted_again_on_its_way_back_it_keeps_what_it_had(llama: Path) -> None:
    driver = driver_of(llama)
    command, first = preempt(driver)
    driver.run()
    evict_all(driver)
    driver.turn(resumed := resume(driver, command, first))
    driver.engine._room._preempt(driver.engine.state.jobs[resumed.job_id])
    driver.run()
    second = driver.said(ipc.Preempted)[1]
    assert second.job_id == resumed.job_id
    produced = driver.tokens[command.job_id, 0]
    last = driver.admit(prompt_of(20), 60, output_ids=ipc.pack_ids(produced), resumes=second.job_id)
    driver.run(last)
    assert produced + driver.tokens[last.job_id, 0] == reference_greedy(llama, prompt_of(20), 60)
    counters = driver.engine.state.counters
    assert (counters.kept_sequences, counters.restored_sequences) == (1, 1)
    driver.check()


@pytest.mark.parametrize("kind", [ipc.Abort, ipc.Finish])
def test_a_late_word_on_the_job_before_drops_nothing_that_is_being_read(llama: Path, kind: type[ipc.Command]) -> None:
    driver = driver_of(llama)
    command, first = preempt(driver)
    driver.run()
    evict_all(driver)
    driver.turn(resumed := resume(driver, command, first))
    driver.turn(ipc.Abort(command.job_id) if kind is ipc.Abort else ipc.Finish(command.job_id, 0, 3))
    driver.engine._room._preempt(driver.engine.state.jobs[resumed.job_id])
    produced = driver.tokens[command.job_id, 0]
    last = driver.admit(prompt_of(20), 60, output_ids=ipc.pack_ids(produced), resumes=resumed.job_id)
    driver.run(last)
    assert produced + driver.tokens[last.job_id, 0] == reference_greedy(llama, prompt_of(20), 60)
    assert driver.engine.state.counters.restored_sequences == 1
    driver.check()


def test_a_choice_that_cannot_come_back_takes_no_other_with_it(llama: Path) -> None:
    driver = driver_of(llama)
    command = driver.admit(prompt_of(20), 60, choices=(0, 1))
    driver.turn(command)
    while len(driver.tokens[command.job_id, 1]) < 20:
        driver.turn()
    for _ in range(2):
        driver.engine._room._preempt(driver.engine.state.jobs[command.job_id])
    driver.run()
    evict_all(driver)
    of_choice = {event.choice: event for event in driver.said(ipc.Preempted)}
    bad = driver.admit((VOCAB,), 60, choices=(0,), resumes=command.job_id)
    driver.run(bad, resumed := resume(driver, command, of_choice[1]))
    assert driver.engine.state.counters.restored_sequences == 1
    assert driver.tokens[command.job_id, 1] + driver.tokens[resumed.job_id, 1] == reference_greedy(
        llama, prompt_of(20), 60
    )
    driver.check()


def test_a_full_host_cache_means_computing_again_and_is_said_once(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(llama, num_pages=5, num_kv_tokens=190)
    prompts = [prompt_of(20, seed=i) for i in range(5)]
    with caplog.at_level(logging.INFO):
        driver.run(*(driver.admit(prompt, 60, arrival=float(-i)) for i, prompt in enumerate(prompts)))
        preempted = driver.said(ipc.Preempted)
        assert driver.engine.state.counters.host_cache_full >= 2
        assert sum("host cache is full" in record.message for record in caplog.records) == 1
        for event in preempted:
            prompt = prompts[event.job_id - 1]
            resumed = driver.admit(
                prompt, 60, output_ids=ipc.pack_ids(driver.tokens[event.job_id, 0]), resumes=event.job_id
            )
            driver.run(resumed)
            assert driver.tokens[event.job_id, 0] + driver.tokens[resumed.job_id, 0] == reference_greedy(
                llama, prompt, 60
            )
    driver.check()


def test_without_a_host_cache_nothing_is_kept(llama: Path) -> None:
    driver = Driver(llama, num_kv_tokens=150)
    preempt(driver)
    driver.run()
    counters = driver.engine.state.counters
    assert (counters.kept_sequences, counters.host_cache_full) == (0, 0)
    driver.check()


def test_less_than_a_page_is_refused_by_its_name(llama: Path) -> None:
    with pytest.raises(ConfigError, match="host_cache_gib is 1e-09; allowed: 0, or at least"):
        Driver(llama, host_cache_gib=1e-9)
    with pytest.raises(ConfigError, match="host_cache_gib is -1"):
        Driver(llama, host_cache_gib=-1.0)


def test_integrity_finds_a_page_with_two_owners(llama: Path) -> None:
    driver = driver_of(llama)
    preempt(driver)
    host = driver.engine.state.host
    host._free.append(host._kept[1, 0].pages[0])
    assert "a page of the host cache has two owners" in host.problems()


def test_short_sequences_are_computed_and_long_ones_are_copied() -> None:
    costs = Costs(copy_s_per_token=1e-5, copy_s=2e-3, compute_s_per_token=3e-5)
    assert not pays(100, costs)
    assert pays(101, costs)
    assert not pays(10**6, costs._replace(compute_s_per_token=0.9e-5))


def test_the_rule_counts_the_weights_a_token_passes(model_of: Any) -> None:  # noqa: ANN401
    dense, routed = (read_model_config(model_of(family)) for family in ("llama", "qwen3-moe"))
    assert weights_of_a_token(dense) == 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    assert weights_of_a_token(routed) == 3 * 32 * 16 * 2 * (4 + 2) + 3 * 32 * (48 + 2 * 2 * 24)
    one, two = (costs_of(dense, 1000 // ranks, ranks, "cpu") for ranks in (1, 2))
    assert one.compute_s_per_token == 2 * two.compute_s_per_token


@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_that_is_scored_is_computed_anew(llama: Path, depth: int) -> None:
    """Of what is kept there are no logits; and what a launched step would have said of it was not heard."""
    driver, prompt = driver_of(llama, pipeline_depth=depth, chunk_tokens=2, num_kv_tokens=210), prompt_of(100)
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=2)
    older = [driver.admit(prompt_of(20, seed=i), 60, arrival=0.0) for i in (1, 2)]
    driver.turn(*older)
    while driver.engine.state.prefilling:
        driver.turn()
    scored = driver.admit(prompt, 2, sampling=sampling)
    driver.run(scored)
    (event,) = driver.said(ipc.Preempted)
    assert event.job_id == scored.job_id
    again = driver.admit(prompt, 2, sampling=sampling, resumes=scored.job_id)
    driver.run(again)
    scores = PromptScores(len(prompt), 2)
    for step in driver.said(ipc.StepDone):
        for _, part in step.prompt_logprobs:
            scores.take(part)
    assert len(list(scores.whole())) == len(prompt) - 1
    assert driver.engine.state.counters.kept_sequences == 0
    assert driver.tokens[again.job_id, 0] == reference_greedy(llama, prompt, 2)
    driver.check()


def test_what_is_kept_is_dropped_where_the_prompt_is_still_to_be_scored(llama: Path) -> None:
    """Whoever resumes it may lack its scores, as they are told a step behind."""
    driver = driver_of(llama)
    command, event = preempt(driver)
    driver.run()
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=2)
    scored = structs.replace(resume(driver, command, event), sampling=sampling)
    driver.run(scored)
    scores = PromptScores(20, 2)
    for step in driver.said(ipc.StepDone):
        for _, part in step.prompt_logprobs:
            scores.take(part)
    assert len(list(scores.whole())) == 19
    assert driver.engine.state.counters.restored_sequences == 0
    assert driver.tokens[command.job_id, 0] + driver.tokens[scored.job_id, 0] == reference_greedy(
        llama, prompt_of(20), 60
    )
    driver.check()
