"""Two ranks of the cuda backend: on two cards, or without any under the interpreter, as real engine processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec, SamplingParams
from tests.engine.driver import Driver
from tests.engine.process import EngineProcess
from tests.engine.tiny import EOS, make_model, make_worded_model, prompt_of, reference_greedy

ON_CARDS = torch.cuda.device_count() >= 2
NUM_TOKENS = 12 if ON_CARDS else 2  # interpreted steps take seconds
LENGTHS = (1, 16, 37, 100) if ON_CARDS else (9,)
SAMPLED = SamplingParams(temperature=0.9, seed=5, num_logprobs=2)
MODULE = "services.engine.main" if ON_CARDS else "tests.kernels.interpreted_engine"

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two cards, or none"),
    pytest.mark.timeout(400),  # interpreted ranks wait for each other by spinning
]


def model(family: str, folder: Path) -> Path:
    """With an even vocabulary, so that its head is split."""
    return make_model(family, folder, vocab_size=212, num_hidden_layers=2)


def admit(job_id: int, prompt: tuple[int, ...], sampling: SamplingParams) -> ipc.Admit:
    stop = ipc.EngineStop(max_new_tokens=NUM_TOKENS, stop_token_ids=(EOS,))
    return ipc.Admit(
        job_id, ipc.AttemptKey(f"{job_id:032x}", 0), ipc.pack_ids(list(prompt)), sampling, stop, float(job_id)
    )


def ranks_say(
    folder: Path, meet: Path, dtype: str = "float32", sampled: SamplingParams = SAMPLED
) -> list[list[int]]:  # fmt: skip
    """Tokens of the greedy prompts, then of the sampled one."""
    with EngineProcess(
        folder, meet, backend="cuda" if ON_CARDS else "cpu", num_ranks=2, dtype=dtype,
        max_running_requests=2 if ON_CARDS else 1, max_context_tokens=160, module=MODULE,
    ) as engine:  # fmt: skip
        jobs = [admit(i, prompt_of(n), SamplingParams(temperature=0.0)) for i, n in enumerate(LENGTHS)]
        jobs.append(admit(len(LENGTHS), prompt_of(9), sampled))
        for job in jobs:
            engine.send(job)
            engine.wait(ipc.Ended)
        engine.check()
        engine.send(ipc.Shutdown())
        assert [process.wait(120) for process in engine.ranks] == [0, 0]
        return [engine.outputs(job.job_id) for job in jobs]


def test_float32_on_two_ranks_equals_one_token_for_token(tmp_path: Path) -> None:
    folder = model("llama-biased", tmp_path / "model")
    alone = Driver(folder)
    drawn = alone.outputs(alone.admit(prompt_of(9), NUM_TOKENS, sampling=SAMPLED, stop_token_ids=(EOS,)))
    greedy = [reference_greedy(folder, prompt_of(n), NUM_TOKENS) for n in LENGTHS]
    assert ranks_say(folder, tmp_path) == greedy + drawn


@pytest.mark.skipif(not ON_CARDS, reason="needs two cards")
@pytest.mark.parametrize("family", ["qwen3", "qwen3-moe"])
def test_families_run_in_bfloat16_and_ranks_agree(family: str, tmp_path: Path) -> None:
    """A rank that draws other tokens than rank 0 ends the engine."""
    outputs = ranks_say(model(family, tmp_path / "model"), tmp_path, "bfloat16")
    assert all(0 < len(output) <= NUM_TOKENS for output in outputs)


def test_ranks_keep_to_a_grammar_and_draw_as_one_does(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_worded_model(folder, num_hidden_layers=2)
    sampled = SamplingParams(seed=1, grammar=GrammarSpec(GrammarKind.REGEX, "[xyz]{20}"))
    alone = Driver(folder)
    alone.turn(alone.admit(prompt_of(9), NUM_TOKENS, sampling=sampled, stop_token_ids=(EOS,)))
    while alone.engine.has_work:  # with the patience that compiling a grammar takes
        alone.turn()
    assert ranks_say(folder, tmp_path, sampled=sampled)[-1] == alone.tokens[1, 0]
    assert len(alone.tokens[1, 0]) == NUM_TOKENS
