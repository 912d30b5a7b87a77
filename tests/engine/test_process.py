"""The engine as a process: start, failure to start, work over the socket, shutdown."""

from pathlib import Path

import msgspec
import pytest
import torch

from services.common import ipc
from services.common.request import GrammarKind, GrammarSpec
from tests.engine.driver import GREEDY
from tests.engine.process import EngineProcess
from tests.engine.tiny import MAX_CONTEXT, VOCAB, prompt_of, reference_greedy

WITHOUT_CARD = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")


def admit(job_id: int, prompt: tuple[int, ...], num_tokens: int) -> ipc.Admit:
    return ipc.Admit(
        job_id=job_id,
        key=ipc.AttemptKey(f"{job_id:032x}", 0),
        prompt_ids=ipc.pack_ids(list(prompt)),
        sampling=GREEDY,
        stop=ipc.EngineStop(max_new_tokens=num_tokens),
        arrival=float(job_id),
    )


def test_it_serves_over_the_socket_and_ends_with_shutdown(llama: Path, tmp_path: Path) -> None:
    with EngineProcess(llama, tmp_path) as engine:
        assert (engine.ready.vocab_size, engine.ready.max_context_tokens) == (VOCAB, MAX_CONTEXT)
        prompts = {1: prompt_of(40), 2: prompt_of(3)}
        engine.send(*(admit(job_id, prompt, 9) for job_id, prompt in prompts.items()))
        for _ in prompts:
            engine.wait(ipc.Ended)
        for job_id, prompt in prompts.items():
            assert engine.outputs(job_id) == reference_greedy(llama, prompt, 9)
        engine.wait(ipc.Alive)
        assert engine.wait(ipc.Counters).values["output_tokens"] == 18
        engine.check()
        engine.send(ipc.Shutdown())
        assert engine.process.wait(60) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"num_kv_tokens": 10**12}, "lower num_kv_tokens"),
        pytest.param({"backend": "cuda"}, "backend", marks=WITHOUT_CARD),
    ],
)
def test_a_bad_start_exits_with_the_reason(
    llama: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with EngineProcess(llama, tmp_path, wait=False, **changes) as engine:
        assert engine.process.wait(60) == 2
        assert message in engine.stop()


def test_shutdown_does_not_wait_for_a_grammar_that_is_compiled(llama: Path, tmp_path: Path) -> None:
    with EngineProcess(llama, tmp_path, module="tests.engine.slow_grammars") as engine:
        wanting = msgspec.structs.replace(GREEDY, grammar=GrammarSpec(GrammarKind.REGEX, "a+"))
        engine.send(msgspec.structs.replace(admit(1, prompt_of(40), 9), sampling=wanting))
        engine.wait(ipc.StepDone)
        engine.send(ipc.Shutdown())
        assert engine.process.wait(60) == 0


def test_it_ends_when_its_control_process_is_gone(llama: Path, tmp_path: Path) -> None:
    with EngineProcess(llama, tmp_path) as engine:
        assert engine.process.stdin is not None
        engine.process.stdin.close()
        assert engine.process.wait(60) == 1
