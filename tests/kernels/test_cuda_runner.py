"""The engine's whole loop over the cuda backend; without a card under the interpreter, on tiny models."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import triton
from torch import Tensor

from kernels import indexed, masks, pages, sampling
from services.common import ipc
from services.common.prompt_logprobs import PromptScores
from services.common.request import (
    LengthPenalty,
    PromptPenalty,
    SamplingParams,
)
from services.engine import host_rule, host_setup, sampling_rules
from services.engine.backends.cuda import prefill_graphs
from services.engine.backends.cuda.clock import Mark
from services.engine.backends.cuda.decode_graphs import ladder
from services.engine.backends.cuda.padded_chunks import PaddedShape
from services.engine.backends.cuda.runner import CudaRunner
from services.engine.config import ConfigError
from services.engine.penalties import TokenPenalties
from tests.engine.driver import Driver
from tests.engine.tiny import EOS, FAMILIES, make_model, prompt_of, reference_greedy
from tests.kernels.conftest import HAS_CARD, Engines

TOKENS, LAYERS = (5, 3) if HAS_CARD else (3, 2)  # interpreted steps take seconds
SHOWN = (*FAMILIES, "gemma3", "gpt-neox", "olmo2") if HAS_CARD else ("llama-biased", "qwen3-moe", "gemma3")
BRIEFLY = () if HAS_CARD else ("llama3-rope", "qwen2")
"""Differ from those by a rotation and a bias: a short run under the interpreter shows it."""
CONTEXT = 128
"""As long as the window of the model with the shortest one."""


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            shape = {"num_hidden_layers": LAYERS} if family in FAMILIES else {}
            made[family] = make_model(family, tmp_path_factory.mktemp(family), **shape)
        return made[family]

    return get


@pytest.mark.parametrize("family", SHOWN)
def test_greedy_equals_transformers(family: str, engine: Engines, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of(family)
    driver = engine(folder, max_context_tokens=CONTEXT)
    prompts = [prompt_of(length) for length in (1, 7, 37 if HAS_CARD else 19)]
    outputs = driver.outputs(*(driver.admit(prompt, TOKENS, stop_token_ids=(EOS,)) for prompt in prompts))
    assert outputs == [reference_greedy(folder, prompt, TOKENS) for prompt in prompts]
    driver.check()


@pytest.mark.parametrize("family", BRIEFLY)
def test_two_greedy_tokens_of_one_prompt_equal_transformers(
    family: str, engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(family)
    driver = engine(folder, max_running_requests=1)
    (output,) = driver.outputs(driver.admit(prompt_of(19), 2, stop_token_ids=(EOS,)))
    assert output == reference_greedy(folder, prompt_of(19), 2)


def test_a_cached_prefix_and_a_second_wave_give_the_same_tokens(
    engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    """Rows are used again, so their table entries are overwritten; more requests than rows at once wait their turn."""
    folder = folder_of("llama")
    driver = engine(folder)
    shared = prompt_of(20 if HAS_CARD else 9)
    for wave in range(2):
        prompts = [shared + prompt_of(3 + i, seed=10 * wave + i) for i in range(3)]
        outputs = driver.outputs(*(driver.admit(prompt, TOKENS, stop_token_ids=(EOS,)) for prompt in prompts))
        assert outputs == [reference_greedy(folder, prompt, TOKENS) for prompt in prompts]
    driver.check()


SAMPLING = [
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.2, top_p=0.8, seed=6),
    SamplingParams(temperature=1.0, top_k=7, num_logprobs=3, seed=7),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2),
    SamplingParams(
        temperature=0.8, min_p=0.05, logit_bias={3: 4.0, 8: -2.0}, allowed_token_ids=tuple(range(60)), seed=8
    ),
    SamplingParams(temperature=0.0, num_logprobs=2),
    SamplingParams(
        temperature=0.7, repetition_penalty=1.4, prompt_penalty=PromptPenalty.ALL, seed=9,
        length_penalty=LengthPenalty(0, 1.5), bad_sequences=((3,), *((i, j) for i in range(9) for j in range(60))),
    ),
]  # fmt: skip


def test_every_way_of_sampling_equals_the_cpu_backend(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("llama")
    runs = []
    for driver in (Driver(folder, backend="cpu"), engine(folder, max_running_requests=len(SAMPLING))):
        commands = [
            driver.admit(prompt_of(3 + i), TOKENS, sampling=each, stop_token_ids=(EOS,))
            for i, each in enumerate(SAMPLING)
        ]
        tokens = driver.outputs(*commands)
        logprobs = [[p for step in driver.logprobs[c.job_id, 0] for p in (step.logprob, *(v for _, v in step.top))]
                    for c in commands]  # fmt: skip
        ids = [[i for step in driver.logprobs[c.job_id, 0] for i in (step.token_id, *(t for t, _ in step.top))]
               for c in commands]  # fmt: skip
        runs.append((tokens, ids, logprobs))
        driver.check()
    assert runs[0][:2] == runs[1][:2]
    for expected, found in zip(runs[0][2], runs[1][2], strict=True):
        assert found == pytest.approx(expected, abs=1e-4)


def note_graphs(prefill: prefill_graphs.PrefillGraphs) -> list[PaddedShape]:
    """Shapes of the graphs that are launched from now on."""
    shapes: list[PaddedShape] = []

    def noting(shape: PaddedShape, graph: Callable[[], object]) -> Callable[[], object]:
        def noted() -> None:
            shapes.append(shape)
            graph()

        return noted

    prefill._graphs = {shape: noting(shape, graph) for shape, graph in prefill._graphs.items()}
    return shapes


def test_many_short_prompts_share_a_graph_and_padding_run_beforehand_is_not_seen(
    engine: Engines, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama-biased")
    driver = engine(folder)
    prefill = driver.engine._runner._prefill  # type: ignore[attr-defined] # the cuda runner's own
    if not HAS_CARD:
        monkeypatch.setattr(prefill_graphs, "_LAUNCHED_TOKENS", 32)
        with torch.inference_mode():
            prefill.warm(64)
    shapes = note_graphs(prefill)
    prompts = [prompt_of(3, seed=i) for i in range(5)]
    driver.turn(*(driver.admit(prompt, 2, stop_token_ids=(EOS,)) for prompt in prompts))
    assert len(shapes) == 1
    assert shapes[0].num_chunks >= len(prompts)
    driver.run()
    assert list(driver.tokens.values()) == [reference_greedy(folder, prompt, 2) for prompt in prompts]
    driver.check()


def test_more_first_tokens_than_rows_come_of_prompts_to_hand_over(
    engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    runs = []
    for driver in (Driver(folder_of("llama"), backend="cpu"), engine(folder_of("llama"), max_running_requests=2)):
        several = driver.admit(
            prompt_of(6), 4, choices=tuple(range(5)), hand_over=True, sampling=SamplingParams(temperature=1.0, seed=3)
        )
        driver.run(several)
        driver.turn(ipc.Release(several.job_id))
        runs.append({key: driver.tokens[key] for key in sorted(driver.tokens)})
        driver.check()
    assert runs[0] == runs[1]
    assert len(runs[0]) == 5


def test_what_a_sequence_has_on_the_device_goes_with_it(
    engine: Engines, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no step comes behind its last one."""
    counts: list[weakref.ref[TokenPenalties]] = []

    class Noted(TokenPenalties):
        def __init__(self, params: SamplingParams, prompt: Tensor, outputs: Tensor, vocab_size: int) -> None:
            super().__init__(params, prompt, outputs, vocab_size)
            counts.append(weakref.ref(self))

    monkeypatch.setattr(sampling_rules, "TokenPenalties", Noted)
    driver = engine(folder_of("llama"), max_running_requests=1)
    driver.run(driver.admit(prompt_of(3), 2, sampling=SamplingParams(temperature=0.0, presence_penalty=0.5)))
    assert counts
    assert [count() for count in counts] == [None] * len(counts)


def test_choices_of_one_prompt_and_minimum_lengths(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("llama")
    runs = []
    for driver in (Driver(folder, backend="cpu"), engine(folder)):
        several = driver.admit(
            prompt_of(6), TOKENS, choices=(0, 1, 2), sampling=SamplingParams(temperature=1.0, seed=3)
        )
        masked = driver.admit(prompt_of(4), TOKENS, min_new_tokens=3, stop_token_ids=tuple(range(100)))
        driver.run(several, masked)
        runs.append({key: driver.tokens[key] for key in sorted(driver.tokens)})
        driver.check()
    assert runs[0] == runs[1]


def test_bfloat16_runs_through_the_small_batch_products(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    driver = engine(folder_of("llama"), dtype="bfloat16", max_running_requests=2)
    (tokens,) = driver.outputs(driver.admit(prompt_of(7), 2))
    assert len(tokens) == 2
    driver.check()


@torch.inference_mode()
def test_pages_are_gathered_and_scattered(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    driver = engine(folder_of("llama"), max_running_requests=1)
    runner = driver.engine._runner
    pool = runner.backend.pool
    pool.normal_()
    slots = torch.tensor([9, 2, 30], dtype=torch.int32).numpy()
    page = torch.empty(pool.shape[0], 3, *pool.shape[2:], dtype=pool.dtype, device=pool.device)
    gathered = runner.backend.gather(slots, page, 0, Mark(runner.backend.device))
    while not gathered.done():
        pass
    assert torch.equal(page, pool[:, [9, 2, 30]])
    runner.backend.scatter(page.flip(1), slots)
    assert torch.equal(pool[:, [30, 2, 9]], page)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CARD, reason="needs a CUDA device: nothing runs beside anything")
@torch.inference_mode()
def test_slots_may_be_written_behind_the_gathers_that_were_ended(
    engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    runner = engine(folder_of("llama"), max_running_requests=1).engine._runner.backend
    pool = runner.pool.normal_()
    expected = pool[:, [9, 2, 30]].clone()
    page = torch.empty_like(expected)
    _keep_busy(pool.device, cycles=20_000_000)
    runner.gather(torch.tensor([9, 2, 30], dtype=torch.int32).numpy(), page, 0, Mark(pool.device))
    runner.end_gathers()
    pool.zero_()
    Mark(pool.device).wait()
    assert torch.equal(page, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CARD, reason="needs a CUDA device: nothing runs beside anything")
@torch.inference_mode()
def test_a_gather_does_not_wait_for_the_step_behind_the_one_it_reads(
    engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    runner = engine(folder_of("llama"), max_running_requests=1).engine._runner.backend
    page = torch.empty_like(runner.pool[:, :3])
    written = Mark(runner.device)
    _keep_busy(runner.device, cycles=4_000_000_000)
    step = Mark(runner.device)
    gathered = runner.gather(torch.tensor([9, 2, 30], dtype=torch.int32).numpy(), page, 0, written)
    while not gathered.done():
        pass
    assert not step.done()


def _keep_busy(device: torch.device, cycles: int) -> None:
    if device.type == "cuda":
        torch.cuda._sleep(cycles)


def test_a_preempted_sequence_resumes_from_the_host(
    engine: Engines, folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_setup, "PAGE_TOKENS", 4)
    fast = host_rule._Speeds(1e12, 0.0, 1.0)
    monkeypatch.setattr(host_rule, "_SPEEDS", {"cpu": fast, "cuda": fast})
    folder = folder_of("llama")
    driver = engine(folder, num_kv_tokens=16, host_cache_gib=1e-4, prefix_cache=False, max_running_requests=2)
    young = driver.admit(prompt_of(7), 3, arrival=9.0)
    driver.turn(young, driver.admit(prompt_of(7, seed=1), 4))
    while not driver.said(ipc.Preempted):
        driver.turn()
    assert [event.job_id for event in driver.said(ipc.Preempted)] == [young.job_id]
    driver.run()
    produced = driver.tokens[young.job_id, 0]
    resumed = driver.admit(prompt_of(7), 3, output_ids=ipc.pack_ids(produced), resumes=young.job_id)
    driver.run(resumed)
    assert produced + driver.tokens[resumed.job_id, 0] == reference_greedy(folder, prompt_of(7), 3)
    assert driver.engine.state.counters.restored_tokens == 7 + len(produced) - 1
    driver.check()


def test_first_tokens_from_elsewhere_are_the_next_inputs(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    driver = engine(folder_of("llama"), max_running_requests=2)
    runner = driver.engine._runner
    assert isinstance(runner, CudaRunner)
    runner.set_next_ids([1], [77])
    driver.outputs(driver.admit(prompt_of(3), 2))
    assert runner._table.next_ids[1].item() == 77


def test_the_ladder_is_fine_and_reaches_its_end() -> None:
    for most in (1, 7, 64, 200, 256, 1000):
        rungs = ladder(most)
        assert rungs == sorted(set(rungs))
        assert rungs[-1] == most
        for before, after in itertools.pairwise(rungs):
            assert after - before <= max(8, after // 8, 16 if after > 64 else 8)


def test_a_machine_without_a_card_says_so(folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="backend is 'cuda', but torch .* on this machine"):
        Driver(folder_of("llama"), backend="cuda")


def test_ipc_events_name_the_backend(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    ready = engine(folder_of("llama"), max_running_requests=1).engine.ready()
    assert isinstance(ready, ipc.EngineReady)
    assert ready.backend == "cuda"


def test_prompt_logprobs_equal_the_cpu_backends(engine: Engines, folder_of: Callable[[str], Path]) -> None:
    folder = folder_of("llama")
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=3)
    runs = []
    for driver in (Driver(folder, backend="cpu"), engine(folder, max_running_requests=2)):
        admit, beside = driver.admit(prompt_of(21), 2, sampling=sampling), driver.admit(prompt_of(5), 3)
        tokens = driver.outputs(beside, admit)
        scores = PromptScores(21, 3)
        for step in driver.said(ipc.StepDone):
            for _, part in step.prompt_logprobs:
                scores.take(part)
        runs.append((tokens, list(scores.whole())))
        driver.check()
    assert runs[0][0] == runs[1][0]
    for expected, found in zip(runs[0][1], runs[1][1], strict=True):
        assert found.rank == expected.rank
        assert [token for token, _ in found.top] == [token for token, _ in expected.top]
        values = [found.logprob, *(value for _, value in found.top)]
        assert values == pytest.approx([expected.logprob, *(value for _, value in expected.top)], abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_CARD, reason="needs a CUDA device: an interpreter compiles nothing")
def test_no_kernel_is_compiled_once_the_engine_is_ready(
    monkeypatch: pytest.MonkeyPatch, engine: Engines, folder_of: Callable[[str], Path]
) -> None:
    """Every way of sampling, any number of requests at once, KV to the host and back: all streams would wait for it."""
    monkeypatch.setattr(host_rule, "_SPEEDS", {"cuda": host_rule._Speeds(1e12, 0.0, 1.0)})
    monkeypatch.setattr(host_setup, "PAGE_TOKENS", 4)
    for kernels in (sampling._sample, pages._copy_pages, indexed._indexed, masks._rule_out):
        kernels.device_caches.clear()  # of tests before this one
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **about: compiled.append(str(about["fn"].name))
    )
    driver = engine(
        folder_of("llama"), num_kv_tokens=200, host_cache_gib=1e-3, max_running_requests=24, dtype="bfloat16"
    )
    assert any("_sample" in name for name in compiled), "the hook is heard"
    compiled.clear()
    ways = (
        SamplingParams(temperature=0.0), SamplingParams(seed=1), SamplingParams(top_k=5, top_p=0.9, min_p=0.1, seed=2),
        SamplingParams(repetition_penalty=1.2, seed=3), SamplingParams(num_logprobs=2, num_prompt_logprobs=1, seed=4),
    )  # fmt: skip
    for num_requests in (1, 2, 16, 23):
        driver.run(
            *(
                driver.admit(prompt_of(3 + i, seed=num_requests + i), 9, sampling=ways[i % len(ways)])
                for i in range(num_requests)
            )
        )
    assert compiled == []
