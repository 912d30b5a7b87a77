"""Too few slots or rows: deferral, eviction, preemption and resume, aborts, and what is left after each."""

from pathlib import Path

import pytest

from services.common import ipc
from services.common.request import FinishReason
from tests.engine.driver import Driver
from tests.engine.tiny import EOS, prompt_of, reference_greedy


def test_a_prompt_without_room_is_deferred_without_a_trace(llama: Path) -> None:
    driver = Driver(llama, num_kv_tokens=64)
    driver.turn(driver.admit(prompt_of(50), 5))
    before = driver.engine.state.usage()
    events = driver.turn(refused := driver.admit(prompt_of(30, seed=1), 5))
    assert [e.job_id for e in events if isinstance(e, ipc.Deferred)] == [refused.job_id]
    assert driver.engine.state.usage().held_slots == before.held_slots
    driver.run()
    assert driver.outputs(refused)[0] == reference_greedy(llama, prompt_of(30, seed=1), 5)
    driver.check()


def test_too_few_rows_defer_too(llama: Path) -> None:
    driver = Driver(llama, max_running_requests=2)
    driver.turn(driver.admit(prompt_of(5), 9), driver.admit(prompt_of(6), 9), driver.admit(prompt_of(7), 9))
    assert len(driver.said(ipc.Admitted)) == 2
    assert [e.job_id for e in driver.said(ipc.Deferred)] == [3]
    driver.run()
    driver.check()


def test_held_slots_of_admissions_add_up(llama: Path) -> None:
    driver = Driver(llama)
    shared = prompt_of(40)
    driver.outputs(driver.admit(shared, 1))
    driver.turn(driver.admit(shared + prompt_of(4), 9), driver.admit(shared + prompt_of(4, seed=1), 9))
    admitted = driver.said(ipc.Admitted)[1:]
    first, second = (event.held_slots for event in admitted)
    assert first == second + 40  # the first of them pinned the cached prefix
    driver.run()


@pytest.mark.parametrize("depth", [0, 1])
def test_the_latest_arrival_is_preempted_and_resumes_with_the_same_tokens(llama: Path, depth: int) -> None:
    driver = Driver(llama, num_kv_tokens=150, pipeline_depth=depth)
    prompts = [prompt_of(20, seed=i) for i in range(4)]
    commands = [driver.admit(prompt, 60, arrival=float(-i)) for i, prompt in enumerate(prompts)]
    driver.run(*commands)
    preempted = [event.job_id for event in driver.said(ipc.Preempted)]
    assert preempted[0] == 1  # the first job has the latest arrival
    assert 4 not in preempted
    for job_id in preempted:
        tokens = driver.tokens[job_id, 0]
        prompt = prompts[job_id - 1]
        resumed = driver.admit(prompt, 60, output_ids=ipc.pack_ids(tokens))
        assert tokens + driver.outputs(resumed)[0] == reference_greedy(llama, prompt, 60)
    assert driver.tokens[4, 0] == reference_greedy(llama, prompts[3], 60)
    driver.check()


def test_the_last_running_sequence_is_never_preempted_but_ends_at_its_length(llama: Path) -> None:
    driver = Driver(llama, num_kv_tokens=40)
    command = driver.admit(prompt_of(20), 20)
    driver.run(command)
    # Twenty prompt tokens and 21 inputs would need 41 slots... the context of a pool of 40 ends the outputs at 20.
    assert driver.tokens[command.job_id, 0] == reference_greedy(llama, prompt_of(20), 20)
    assert driver.finishes[command.job_id, 0] is FinishReason.LENGTH
    assert driver.said(ipc.Preempted) == []
    driver.check()


def test_cached_prefixes_are_evicted_before_anybody_is_preempted(llama: Path) -> None:
    driver = Driver(llama, num_kv_tokens=128)
    for seed in range(3):
        driver.outputs(driver.admit(prompt_of(40, seed=seed), 2))
    assert driver.engine.state.usage().evictable_slots > 100
    prompt = prompt_of(60, seed=4)
    assert driver.outputs(driver.admit(prompt, 60))[0] == reference_greedy(llama, prompt, 60)
    assert driver.said(ipc.Preempted) == []
    assert driver.engine.state.counters.evicted_tokens > 0
    driver.check()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 8])
def test_abort_in_each_state_leaves_nothing(llama: Path, turns: int, depth: int) -> None:
    driver = Driver(llama, pipeline_depth=depth)
    command = driver.admit(prompt_of(60), 20, choices=(0, 1))
    driver.turn(command)
    for _ in range(turns):
        driver.turn()
    driver.turn(ipc.Abort(command.job_id))
    assert [event.job_id for event in driver.said(ipc.Ended)] == [command.job_id]
    told = {key: len(tokens) for key, tokens in driver.tokens.items()}
    driver.run(ipc.Abort(command.job_id), ipc.Abort(999))
    assert {key: len(tokens) for key, tokens in driver.tokens.items()} == told
    driver.check()


@pytest.mark.parametrize("depth", [0, 1])
def test_finish_cuts_a_sequence_and_what_lies_beyond_is_not_cached(llama: Path, depth: int) -> None:
    driver = Driver(llama, pipeline_depth=depth)
    prompt = prompt_of(20)
    command = driver.admit(prompt, 50)
    driver.turn(command)
    while len(driver.tokens[command.job_id, 0]) < 10:
        driver.turn()
    driver.run(ipc.Finish(command.job_id, 0, 4))
    assert [event.job_id for event in driver.said(ipc.Ended)] == [command.job_id]
    again = driver.admit(prompt + tuple(reference_greedy(llama, prompt, 8)), 2)
    driver.run(again)
    assert driver.said(ipc.Admitted)[-1].cached_tokens == 24
    driver.check()


def test_one_choice_ends_while_the_other_goes_on(llama: Path) -> None:
    driver = Driver(llama, prefix_cache=False)
    command = driver.admit(prompt_of(20), 12, choices=(0, 1))
    driver.turn(command)
    for _ in range(4):
        driver.turn()
    driver.turn(ipc.Finish(command.job_id, 0, 1))
    assert driver.said(ipc.Ended) == []
    driver.run()
    assert driver.tokens[command.job_id, 1] == reference_greedy(llama, prompt_of(20), 12)
    driver.check()


def test_a_stop_token_ends_at_once_and_a_late_step_is_counted(llama: Path) -> None:
    prompt = prompt_of(20)
    expected = reference_greedy(llama, prompt, 9)
    for depth in (0, 1):
        driver = Driver(llama, pipeline_depth=depth)
        command = driver.admit(prompt, 50, stop_token_ids=(expected[5],))
        assert driver.outputs(command)[0] == expected[: expected.index(expected[5]) + 1]
        assert driver.finishes[command.job_id, 0] is FinishReason.STOP
        assert driver.engine.state.counters.tokens_past_end == depth
        driver.check()


def test_a_length_is_known_beforehand_so_no_step_is_wasted(llama: Path) -> None:
    driver = Driver(llama, pipeline_depth=1)
    driver.outputs(driver.admit(prompt_of(20), 9))
    assert driver.engine.state.counters.tokens_past_end == 0


def test_the_context_ends_an_output(llama: Path) -> None:
    driver = Driver(llama, max_context_tokens=32)
    command = driver.admit(prompt_of(20), 500)
    assert driver.outputs(command)[0] == reference_greedy(llama, prompt_of(20), 12)
    assert driver.finishes[command.job_id, 0] is FinishReason.LENGTH


@pytest.mark.parametrize("prompt", [(), (0, EOS + 1), (-1,), (*prompt_of(255), 1, 1)])
def test_a_prompt_that_can_never_run_is_ended_not_crashed_on(llama: Path, prompt: tuple[int, ...]) -> None:
    driver = Driver(llama)
    command = driver.admit(prompt, 5)
    driver.run(command)
    assert [event.job_id for event in driver.said(ipc.Ended)] == [command.job_id]
    assert driver.said(ipc.Admitted) == []
    driver.check()


def test_handed_over_prompts_hold_their_kv_until_release(llama: Path) -> None:
    driver = Driver(llama)
    command = driver.admit(prompt_of(30), 9, hand_over=True, choices=(0, 1))
    driver.run(command)
    assert [len(tokens) for tokens in driver.tokens.values()] == [1, 1]
    assert driver.engine.state.usage().held_slots == 30
    driver.run(ipc.Release(command.job_id))
    assert [event.job_id for event in driver.said(ipc.Ended)] == [command.job_id]
    driver.check()


def test_a_first_token_that_ends_all_frees_a_handed_over_prompt(llama: Path) -> None:
    driver = Driver(llama)
    prompt = prompt_of(30)
    stop = reference_greedy(llama, prompt, 1)[0]
    command = driver.admit(prompt, 9, hand_over=True, stop_token_ids=(stop,))
    driver.run(command)
    assert driver.finishes[command.job_id, 0] is FinishReason.STOP
    assert [event.job_id for event in driver.said(ipc.Ended)] == [command.job_id]
    driver.check()


def test_the_last_chunk_of_a_handed_over_prompt_is_short(llama: Path) -> None:
    driver = Driver(llama, chunk_tokens=64, push_tail_tokens=8)
    driver.run(driver.admit(prompt_of(60), 9, hand_over=True))
    assert [event.num_prefill_tokens for event in driver.said(ipc.StepDone)] == [52, 8]


def test_a_handed_over_prompt_does_not_wait_for_those_behind_it(llama: Path) -> None:
    driver = Driver(llama, chunk_tokens=64, push_tail_tokens=8)
    driver.run(*(driver.admit(prompt_of(60, seed=seed), 9, hand_over=True) for seed in (1, 2)))
    assert [event.num_prefill_tokens for event in driver.said(ipc.StepDone)] == [64, 48, 8]


def test_an_admission_is_told_before_its_first_chunk_is_computed(llama: Path) -> None:
    driver = Driver(llama)
    told: list[ipc.Event] = []
    events = driver.engine.turn([driver.admit(range(5, 15))], told.extend)
    assert [type(one) for one in told] == [ipc.Admitted]
    assert not any(isinstance(one, ipc.Admitted) for one in events)
