"""From a configuration to a model on its device with a pool: what happens before the first step."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from services.engine.backends.interface import Heads
from services.engine.config import ConfigError, EngineConfig
from services.engine.devices import choose_device, make_runner
from services.engine.fingerprint import kv_layout, model_fingerprint
from services.engine.memory import fits
from services.engine.models.config import ModelConfig, read_model_config
from services.engine.models.families import build_decoder
from services.engine.models.rope import rope_tables
from services.engine.models.weights import RandomSource, SafetensorsSource, Weights, WeightSource
from services.engine.pool import allocate_pool, choose_num_slots, kv_bytes_per_token
from services.engine.ranks import Ranks, join_ranks
from services.engine.rows import Rows
from services.engine.runner import Runner

log = logging.getLogger(__name__)

_SMALLER_MODEL = "choose a narrower dtype, a smaller model, or a device that nothing else is on"
_SMALLER_STEPS = "lower memory_fraction (--kv-memory-fraction), max_running_requests or max_context_tokens"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that the loop needs of the model."""

    config: ModelConfig
    runner: Runner
    rows: Rows
    num_slots: int
    max_context_tokens: int
    kv_bytes_per_token: int
    fingerprint: str
    layout: str
    load_s: float
    ranks: Ranks


def load_model(config: EngineConfig) -> LoadedModel:
    """Read the model, build the decoder and allocate the pool; raises ConfigError."""
    began = time.monotonic()
    torch.set_num_threads(config.num_threads or max(1, torch.get_num_threads() // config.num_ranks))
    device = choose_device(config)
    ranks = join_ranks(config, device)
    model, open_source = _open_model(config)
    ranks.check({"num_attention_heads": model.num_heads, "num_key_value_heads": model.num_kv_heads})
    dtype: torch.dtype = getattr(torch, model.dtype if config.dtype == "auto" else config.dtype)
    with torch.inference_mode(), fits(device, f"{config.model} in {dtype}", _SMALLER_MODEL):
        source = open_source(device, dtype)
        decoder = build_decoder(model, Weights(source, device, dtype, rank=ranks.rank, num_ranks=ranks.count))
        bytes_per_token = kv_bytes_per_token(model, dtype) // ranks.count
        num_slots = min(ranks.each(choose_num_slots(config, bytes_per_token, device)))
        pool = allocate_pool(model, num_slots, dtype, device, ranks.count)
    max_context = min(config.max_context_tokens or model.max_context_tokens, model.max_context_tokens, num_slots)
    rows = Rows(config.max_running_requests, max_context, padding_slot=num_slots)
    rope = rope_tables(model.rope, model.head_dim, max_context)
    heads = Heads(model.num_heads // ranks.count, model.num_kv_heads // ranks.count, model.head_dim)
    with torch.inference_mode(), fits(device, "what steps work in", _SMALLER_STEPS):
        runner = make_runner(decoder, pool, rows, heads, rope, ranks)
    loaded = LoadedModel(
        config=model,
        runner=runner,
        rows=rows,
        num_slots=num_slots,
        max_context_tokens=max_context,
        kv_bytes_per_token=bytes_per_token,
        fingerprint=model_fingerprint(Path(config.model), _load_name(config)),
        layout=kv_layout(model, dtype),
        load_s=time.monotonic() - began,
        ranks=ranks,
    )
    log.info("loaded %s (%s, %s) in %.1f s", config.model, model.family, dtype, loaded.load_s)
    return loaded


def _load_name(config: EngineConfig) -> str:
    return f"random {config.random_seed}" if config.load_format == "random" else "files"


def _gguf_file(path: Path, config: EngineConfig) -> Path | None:
    """The GGUF file to read: the path itself, or the only one of a folder that has no safetensors; None otherwise."""
    if path.is_file():
        return path
    wanted = config.load_format == "gguf" or (config.load_format == "auto" and not any(path.glob("*.safetensors")))
    files = sorted(path.glob("*.gguf")) if wanted else []
    if len(files) > 1 or (config.load_format == "gguf" and not files):
        found = ", ".join(file.name for file in files) or "none"
        raise ConfigError(f"model folder {path} should hold one .gguf file; it holds {found}")
    return files[0] if files else None


def _open_model(config: EngineConfig) -> tuple[ModelConfig, Callable[[torch.device, torch.dtype], WeightSource]]:
    """The model's shape, and a function that opens its weights once device and dtype are known."""
    path = Path(config.model).expanduser()
    if not path.exists():
        raise ConfigError(f"model {config.model} is neither a folder nor a file here")
    path = _gguf_file(path, config) or path
    if path.suffix == ".gguf":
        from services.engine.models.gguf import GgufModel  # reading GGUF needs a package that few deployments use

        opened = GgufModel(path)
        return opened.config, lambda device, dtype: opened  # noqa: ARG005
    model = read_model_config(path)
    if config.load_format == "random":
        return model, lambda device, dtype: RandomSource(device, dtype, config.random_seed)
    return model, lambda device, dtype: SafetensorsSource(path)  # noqa: ARG005
