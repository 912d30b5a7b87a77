"""What requests leave to the garbage collector, which the engine's process turns off while it is busy: nothing."""

from pathlib import Path

import pytest

from bench.soak_traffic import Mix, Traffic
from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, LengthPenalty, SamplingParams
from services.engine import host_rule, host_setup
from tests.engine.driver import Driver
from tests.engine.garbage import left_in_cycles, shown
from tests.engine.tiny import VOCAB, make_worded_model, prompt_of

TIMES = 8
SAMPLINGS = (
    SamplingParams(temperature=0.0, num_prompt_logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.9, top_k=5, min_p=0.01),
    SamplingParams(repetition_penalty=1.1, presence_penalty=0.2, length_penalty=LengthPenalty(2, 1.1)),
    SamplingParams(logit_bias={4: 2.0}, bad_sequences=((4, 5), (6,)), num_logprobs=2),
    SamplingParams(grammar=GrammarSpec(GrammarKind.REGEX, r"[ab]{3}-\d+!")),
)


def test_requests_that_ask_for_all_there_is_leave_nothing(tmp_path: Path) -> None:
    driver = Driver(make_worded_model(tmp_path), num_kv_tokens=512)

    def serve() -> None:
        for _ in range(TIMES):
            asked = [driver.admit(prompt_of(12), 10, sampling=each, choices=(0, 1)) for each in SAMPLINGS]
            driver.turn(*asked, driver.admit((1 << 20,), 3))
            while driver.engine.has_work:  # for as long as compiling in threads takes
                driver.turn()

    left = left_in_cycles(serve)
    assert len(left) < TIMES, shown(left)
    assert len(driver.finishes) == 4 * TIMES * len(SAMPLINGS)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_restored_and_aborted_sequences_leave_nothing(
    llama: Path, monkeypatch: pytest.MonkeyPatch, prefix_cache: bool
) -> None:
    monkeypatch.setattr(host_setup, "PAGE_TOKENS", 8)
    monkeypatch.setattr(host_rule, "_SPEEDS", dict.fromkeys(["cpu", "cuda"], host_rule._Speeds(1e12, 0.0, 1.0)))
    driver = Driver(llama, num_kv_tokens=160, max_running_requests=8, host_cache_gib=1e-4, prefix_cache=prefix_cache)
    traffic = Traffic(Mix((4, 40), (5, 40), VOCAB - 2, abort_share=0.2), 160, seed=1)

    def serve() -> None:
        for _ in range(40 * TIMES):
            traffic.take(driver.turn(*traffic.commands()))

    left = left_in_cycles(serve)
    assert len(left) < TIMES, shown(left)
    assert len(driver.said(ipc.Preempted)) > TIMES < traffic.num_aborted
    assert driver.engine.state.counters.restored_sequences > TIMES
