"""Prefill engine -> UCX -> decode engine, two real processes: the same tokens as one model, and nothing left over."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.common import ipc
from tests.engine.driver import GREEDY
from tests.engine.process import EngineProcess
from tests.engine.tiny import EOS, prompt_of, reference_greedy

_PAGES = {"page_bytes": 16 << 10, "num_pages": 4, "depth": 2, "checksum": True}


@dataclass
class Pair:
    """A prefill and a decode engine that know each other; plays both control processes."""

    prefill: EngineProcess
    decode: EngineProcess
    group: str
    next_job: int = field(default=0)

    def key(self, job_id: int) -> ipc.AttemptKey:
        return ipc.AttemptKey(f"{job_id:032x}", 1)

    def admit(self, prompt: tuple[int, ...], num_tokens: int, **changes: object) -> ipc.Admit:
        self.next_job += 1
        values: dict[str, object] = {"choices": (0,), "output_ids": b""} | changes
        return ipc.Admit(
            job_id=self.next_job,
            key=self.key(self.next_job),
            prompt_ids=ipc.pack_ids(list(prompt)),
            sampling=GREEDY,
            stop=ipc.EngineStop(max_new_tokens=num_tokens, stop_token_ids=(EOS,)),
            arrival=float(self.next_job),
            hand_over=True,
            **values,  # type: ignore[arg-type]
        )

    def reserve(self, admit: ipc.Admit) -> ipc.Reserved:
        ids = admit.prompt_ids + admit.output_ids
        self.decode.send(ipc.Reserve(admit.job_id, admit.key, ids, admit.arrival))
        return self.decode.wait(ipc.Reserved, lambda event: event.job_id == admit.job_id)

    def place(self, admit: ipc.Admit, skip: int) -> None:
        self.prefill.send(ipc.Place(admit.job_id, self.decode.config.worker_id, admit.key, skip))

    def first_tokens(self, admit: ipc.Admit) -> dict[int, int]:
        while any(not self.prefill.outputs(admit.job_id, choice) for choice in admit.choices):
            self.prefill.wait(ipc.StepDone)
        return {choice: self.prefill.outputs(admit.job_id, choice)[0] for choice in admit.choices}

    def join(self, admit: ipc.Admit, first: dict[int, int]) -> None:
        num_prompt = len(admit.prompt_ids) // 4
        self.decode.send(ipc.Join(admit.job_id, first, num_prompt, admit.sampling, admit.stop))
        self.decode.wait(ipc.Joined, lambda event: event.job_id == admit.job_id)
        self.prefill.send(ipc.Release(admit.job_id))
        self.prefill.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)

    def finish(self, admit: ipc.Admit) -> None:
        self.decode.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)

    def check(self) -> None:
        self.prefill.check()
        self.decode.check()


@pytest.fixture(scope="module")
def pair(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        EngineProcess(llama, folder, role="prefill", transfer=_PAGES, wait=False) as prefill,
        EngineProcess(llama, folder, role="decode", transfer=_PAGES) as decode,
    ):
        prefill.ready = prefill.wait(ipc.EngineReady)
        from services.common.identity import group_name

        ready = decode.ready
        group = group_name(ready.model_fingerprint, ready.layout, ready.transfer_protocol)
        prefill.send(ipc.ConnectPeer("decode", "127.0.0.1", ready.transfer_ports, decode.config.incarnation, group))
        assert prefill.wait(ipc.PeerProven).peer_id == "decode"
        yield Pair(prefill, decode, group)


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
    for engine in (pair.prefill, pair.decode):
        engine.send(ipc.Abort(admit.job_id))
        engine.wait(ipc.Ended, lambda event: event.job_id == admit.job_id)
    pair.check()


def test_kv_that_nobody_reserved_fails_the_push_and_stays_held(pair: Pair) -> None:
    admit = pair.admit(prompt_of(60, seed=11), 9)
    pair.prefill.send(admit)
    pair.place(admit, 0)
    failed = pair.prefill.wait(ipc.TransferFailed)
    assert (failed.job_id, failed.kind) == (admit.job_id, "refused")
    pair.prefill.send(ipc.CheckIntegrity(1))
    integrity = pair.prefill.wait(ipc.Integrity)
    assert (integrity.problems, integrity.num_jobs) == ([], 1)
    pair.prefill.send(ipc.Abort(admit.job_id))
    pair.prefill.wait(ipc.Ended)
    pair.check()
