"""Compiles what an engine launches for a card that is not here, and says what came of it.

    python -m tests.kernels.compiling '{"model": "llama-8b", "dtype": "bfloat16", "num_ranks": 2, "rank": 1}'

The engine is the real one, on torch's meta device: its tensors have shapes, strides and offsets but no memory, so that
a model of any size costs nothing. It loads, which captures its graphs and runs beforehand what no graph holds, then
serves requests of many kinds. Each launch is compiled as Triton compiles it on a card: for the types of its arguments,
their alignment, its constexprs and its warps. A line of JSON on stdout tells of each compilation; the first that fails
ends the process, with the trace of the launch and the compiler's words on stderr.

Not for a process that goes on: it changes modules of the engine.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from triton import knobs

from bench.precompile import launch_nothing
from services.common.request import LengthPenalty, PromptPenalty, SamplingParams
from services.engine import host_setup, load
from services.engine.agreement import Agreement
from services.engine.backends.cuda import (
    decode_graphs,
    prefill_graphs,
    rank_sums,
    runner,
    sampler,
    warm_up,
)
from services.engine.backends.cuda.clock import Mark
from services.engine.backends.cuda.peer_memory import PeerMemory
from services.engine.host_rule import costs_of
from services.engine.ranks import Ranks
from tests.engine.driver import Driver

META = torch.device("meta")
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 211},
    "llama-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
                 "vocab_size": 128256},
    "llama-70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
                  "vocab_size": 128256},
    "llama-biased": {"hidden_size": 4096, "intermediate_size": 12800, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "vocab_size": 49152, "attention_bias": True, "mlp_bias": True},
    "qwen2-7b": {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
                 "num_key_value_heads": 4, "vocab_size": 152064},
    "qwen3-8b": {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    "qwen3-30b-a3b": {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
                      "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
                      "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                      "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
}  # fmt: skip
"""Shapes of models, as their config.json has them, of two layers."""
GENERIC: dict[str, dict[str, Any]] = {
    "phi3-mini": {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
                  "num_key_value_heads": 32, "vocab_size": 32064, "pad_token_id": 32000},
    "gemma-7b": {"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
                 "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000},
    "gpt-neox-20b": {"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576,
                     "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 50432},
}  # fmt: skip
"""Of models that run through transformers' own modules."""
_OF_ALL = {
    "model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
SAMPLING = (
    SamplingParams(temperature=0.9, seed=5),
    SamplingParams(temperature=1.0, top_k=7, top_p=0.8, min_p=0.05, num_logprobs=3),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2),
    SamplingParams(logit_bias={3: 4.0}, allowed_token_ids=tuple(range(60)), bad_sequences=((3,), (1, 2))),
    SamplingParams(prompt_penalty=PromptPenalty.ALL, repetition_penalty=1.4, length_penalty=LengthPenalty(0, 1.5)),
)


class Case(msgspec.Struct, frozen=True):
    """One rank of an engine. `arch`: compute capability, times ten."""

    model: str
    dtype: str
    num_ranks: int = 1
    rank: int = 0
    max_running_requests: int = 256
    arch: int = 90


class Compiled(msgspec.Struct, frozen=True):
    """One compilation."""

    kernel: str
    phase: str
    """`start`, or `requests` where a request waited for it."""
    constexprs: str
    arch: int
    shared_bytes: int
    files: dict[str, str]
    """By suffix: of Triton's cache."""


class _Alone(Ranks):
    """One of several ranks, whose others are nowhere: they say what it says."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count, self.folder = rank, count, Path()
        self.agreement = Agreement(0, 1, "")

    def total(self, x: Tensor) -> Tensor:
        return x

    def each(self, n: int) -> list[int]:
        return [n] * self.count

    def gather(self, x: Tensor) -> Tensor:
        return x[None].expand(self.count, *x.shape)


class _NoWeights:
    """See WeightSource."""

    def __init__(self, _device: torch.device, dtype: torch.dtype, _seed: int) -> None:
        self._dtype = dtype

    def read(self, _name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=META)


def _peer_memory(ranks: Ranks, size: int, device: torch.device) -> PeerMemory:
    return PeerMemory(
        torch.empty(size, dtype=torch.uint8, device=device), torch.empty(ranks.count, dtype=torch.int64, device=device)
    )


def _launched_once(launches: Callable[[], object], _device: torch.device, _pool: object) -> Callable[[], object]:
    launches()
    return launches


def _zeros(values: Tensor) -> Tensor:
    """What comes to the host."""
    return torch.zeros(values.shape, dtype=values.dtype)


def stand_in() -> None:
    """Put the meta device in the place of a card's."""
    for module, name, value in (
        (load, "choose_device", lambda _config: META),
        (load, "join_ranks", lambda config, _device: _Alone(config.rank, config.num_ranks)),
        (load, "RandomSource", _NoWeights),
        (host_setup, "costs_of", lambda model, kv_bytes, ranks, _device: costs_of(model, kv_bytes, ranks, "cuda")),
        (decode_graphs, "captured", _launched_once),
        (prefill_graphs, "captured", _launched_once),
        (rank_sums, "open_peer_memory", _peer_memory),
        (runner, "download", _zeros),
        (sampler, "download", _zeros),
        (warm_up, "download", _zeros),
        (Tensor, "pin_memory", lambda values: values),
        (torch, "allclose", lambda *_, **__: True),
    ):
        setattr(module, name, value)


class Compilations:
    """Writes what Triton says of each compilation to stdout."""

    def __init__(self) -> None:
        self.phase = "start"
        knobs.compilation.listener = self._tell

    def _tell(self, *, src: Any, metadata: dict[str, Any], metadata_group: dict[str, str], **_: object) -> None:  # noqa: ANN401 - Triton's own
        files = {Path(path).suffix[1:]: path for path in metadata_group.values()}
        arch, shared = metadata["target"].arch, metadata["shared"]
        compiled = Compiled(src.fn.__name__, self.phase, str(src.constants), arch, shared, files)
        print(msgspec.json.encode(compiled).decode(), flush=True)  # noqa: T201


def engine_of(case: Case, folder: Path) -> Driver:
    """Load an engine that has no memory and no card."""
    (folder / "config.json").write_bytes(msgspec.json.encode(_OF_ALL | (MODELS | GENERIC)[case.model]))
    return Driver(
        folder, load_format="random", dtype=case.dtype, num_ranks=case.num_ranks, rank=case.rank,
        rendezvous="nowhere" if case.num_ranks > 1 else "", max_running_requests=case.max_running_requests,
        num_kv_tokens=100_000, chunk_tokens=2048, max_context_tokens=8192,
    )  # fmt: skip


def serve(driver: Driver, pages: set[tuple[int, int]]) -> None:
    """Requests of many kinds, alone and together, and KV that goes and comes; `pages`: as of `pages_of`."""
    for lengths in ([1], [7], [64], [700, 3], [3000], [100] * 9, [5] * 70):
        driver.run(*(driver.admit([1] * length, 3) for length in lengths))
    for sampling in SAMPLING:
        driver.run(driver.admit([1] * 8, 3, sampling=sampling))
    driver.run(*(driver.admit([1] * 8, 3, sampling=each, choices=(0, 1)) for each in SAMPLING))
    device = driver.engine._runner.backend
    pool = device.pool
    for (first_head, num_heads), num_tokens in product(pages, (1, 16, 77)):
        page = pool.new_empty(len(pool), num_tokens, 2 * num_heads, pool.shape[3])
        slots = torch.arange(num_tokens, dtype=torch.int32).numpy()
        device.gather(slots, page, first_head, Mark(META))
        device.scatter(page, slots, first_head)


def pages_of(case: Case) -> set[tuple[int, int]]:
    """What peers of any number of ranks have in common with this one: the first of its heads and how many."""
    model = (MODELS | GENERIC)[case.model]
    num_heads, found = model["num_key_value_heads"], set()
    own = range(num_heads)[case.rank * num_heads // case.num_ranks :][: num_heads // case.num_ranks]
    counts = (1,) if case.model in GENERIC else (1, 2, 4, 8)
    for share in [num_heads // count for count in counts if num_heads % count == 0]:
        for first in range(0, num_heads, share):
            common = [head - own[0] for head in own if first <= head < first + share]
            found |= {(common[0], len(common))} if common else set()
    return found


def main(case: Case) -> None:
    """See the module."""
    launch_nothing(case.arch)
    stand_in()
    compilations = Compilations()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        driver = engine_of(case, Path(folder))
        compilations.phase = "requests"
        serve(driver, pages_of(case))


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Case))
