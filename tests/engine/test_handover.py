"""Prefill engine -> UCX -> decode engine, two real processes: the same tokens as one model, and nothing left over."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common import ipc
from tests.engine.pair import Pair, connected_pair
from tests.engine.tiny import prompt_of, reference_greedy


@pytest.fixture(scope="module")
def pair(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with connected_pair(llama, tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_tokens_equal_one_models(pair: Pair, llama: Path, length: int) -> None:
    prompt = prompt_of(length, seed=length)
    admit = pair.admit(prompt, 12)
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    first = pair.first_tokens(admit)
    pair.join(admit, first)
    pair.finish(admit)
    assert [first[0], *pair.decode.outputs(admit.job_id)] == reference_greedy(llama, prompt, 12)
    pair.check()


def test_placed_after_compute_and_past_a_prefix_that_decode_holds(pair: Pair, llama: Path) -> None:
    prompt = prompt_of(50, seed=7)
    for expected_cached in (0, 50):
        admit = pair.admit(prompt, 9)
        pair.prefill.send(admit)
        first = pair.first_tokens(admit)
        reserved = pair.reserve(admit)
        assert reserved.cached_tokens == expected_cached
        pair.place(admit, reserved.cached_tokens)
        done = pair.prefill.wait(ipc.PushDone)
        assert (done.num_bytes > 0) == (expected_cached == 0)
        pair.join(admit, first)
        pair.finish(admit)
        assert [first[0], *pair.decode.outputs(admit.job_id)] == reference_greedy(llama, prompt, 9)
    pair.check()


def test_several_choices_share_one_prompts_kv(pair: Pair, llama: Path) -> None:
    prompt = prompt_of(30, seed=8)
    admit = pair.admit(prompt, 7, choices=(0, 2))
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    pair.join(admit, pair.first_tokens(admit))
    pair.finish(admit)
    for choice in (0, 2):
        assert len(pair.decode.outputs(admit.job_id, choice)) == 6
        assert pair.decode.outputs(admit.job_id, choice) == reference_greedy(llama, prompt, 7)[1:]
    pair.check()


def test_outputs_of_an_earlier_attempt_move_too(pair: Pair, llama: Path) -> None:
    prompt = prompt_of(26, seed=9)
    expected = reference_greedy(llama, prompt, 14)
    admit = pair.admit(prompt, 14, output_ids=ipc.pack_ids(expected[:5]))
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    pair.join(admit, pair.first_tokens(admit))
    pair.finish(admit)
    assert expected[:6] + pair.decode.outputs(admit.job_id) == expected
    pair.check()


def test_an_abort_before_the_join_leaves_nothing(pair: Pair) -> None:
    admit = pair.admit(prompt_of(60, seed=10), 9)
    pair.prefill.send(admit)
    pair.place(admit, pair.reserve(admit).cached_tokens)
    pair.first_tokens(admit)
    pair.abort_on_both(admit)
    pair.check()


@pytest.mark.parametrize("end", [ipc.Release, ipc.Abort])
def test_a_push_that_landed_is_accounted_for_though_the_jobs_end_comes_before_the_transfers_own_answer(
    pair: Pair, end: type[ipc.Release | ipc.Abort]
) -> None:
    admit = pair.admit(prompt_of(15, seed=12), 9)
    pair.prefill.send(admit)
    pair.first_tokens(admit)
    pair.reserve(admit)
    pair.decode.process.send_signal(signal.SIGSTOP)
    try:
        pair.place(admit, 0)
        pair.prefill.send(ipc.CheckIntegrity(2))
        pair.prefill.wait(ipc.Integrity)
        pair.prefill.send(end(admit.job_id))
        pair.prefill.send(ipc.CheckIntegrity(3))
        pair.prefill.wait(ipc.Integrity, lambda answer: answer.token == 3)
    finally:
        pair.decode.process.send_signal(signal.SIGCONT)
    pair.prefill.wait(ipc.Ended)
    ends = [type(event) for event in pair.prefill.events if getattr(event, "job_id", None) == admit.job_id]
    assert ends[-2:] == [ipc.PushDone, ipc.Ended]
    pair.decode.send(ipc.Abort(admit.job_id))
    pair.finish(admit)
    pair.check()


def test_kv_that_nobody_reserved_fails_the_push_and_stays_held(pair: Pair) -> None:
    admit = pair.admit(prompt_of(60, seed=11), 9)
    pair.fails_unreserved(admit)
    pair.check()
