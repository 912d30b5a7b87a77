"""From a configuration to a model on its device with a pool: what happens before the first step."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.engine.backends.interface import Heads
from services.engine.config import ConfigError, EngineConfig
from services.engine.devices import choose_device, make_runner
from services.engine.fingerprint import kv_layout, model_fingerprint
from services.engine.memory import fits
from services.engine.models.config import FAMILIES, ModelConfig, dtype_name, read_model_config, read_raw_config
from services.engine.models.families import build_decoder
from services.engine.models.generic import GenericDecoder
from services.engine.models.layers import Decoder
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
    with torch.inference_mode(), fits(device, f"{config.model} in {config.dtype}", _SMALLER_MODEL):
        model, dtype, decoder = _build(config, device, ranks)
        bytes_per_token = kv_bytes_per_token(model, dtype) // ranks.count
        num_slots = min(ranks.each(choose_num_slots(config, bytes_per_token, device)))
        pool = allocate_pool(model, num_slots, dtype, device, ranks.count)
    max_context = _max_context(config, model, num_slots)
    rows = Rows(config.max_running_requests, max_context, padding_slot=num_slots)
    rope = rope_tables(model.rope, model.head_dim, max_context)
    heads = Heads(model.num_heads // ranks.count, model.num_kv_heads // ranks.count, model.head_dim)
    with torch.inference_mode(), fits(device, "what steps work in", _SMALLER_STEPS):
        runner = make_runner(decoder, pool, rows, heads, rope, ranks, config.chunk_tokens)
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


def _max_context(config: EngineConfig, model: ModelConfig, num_slots: int) -> int:
    own = model.max_context_tokens
    wanted = config.max_context_tokens or own
    if wanted > own:
        raise ConfigError(f"--max-context-tokens: {wanted} is not allowed; the model's own context has {own} tokens")
    if num_slots < wanted:
        log.warning("the context of %d tokens is cut to the %d that the KV pool holds", wanted, num_slots)
    return min(wanted, num_slots)


def _build(
    config: EngineConfig, device: torch.device, ranks: Ranks
) -> tuple[ModelConfig, torch.dtype, Decoder | GenericDecoder]:
    """The model, with weights, in its family's own implementation where there is one."""
    path = _model_path(config)
    raw = read_raw_config(path) if path.is_dir() else {}
    if raw and raw.get("model_type") not in FAMILIES:
        dtype = _dtype(config, dtype_name(raw, str(path)))
        return _build_generic(config, path, raw, device, dtype)
    model, open_source = _open_model(config, path)
    ranks.check({"num_attention_heads": model.num_heads, "num_key_value_heads": model.num_kv_heads})
    dtype = _dtype(config, model.dtype)
    source = open_source(device, dtype)
    return model, dtype, build_decoder(model, Weights(source, device, dtype, rank=ranks.rank, num_ranks=ranks.count))


def _build_generic(
    config: EngineConfig, path: Path, raw: dict[str, Any], device: torch.device, dtype: torch.dtype
) -> tuple[ModelConfig, torch.dtype, GenericDecoder]:
    if config.num_ranks > 1:
        raise ConfigError(
            f"--tp: {config.num_ranks} is not allowed; model_type {raw.get('model_type')!r} runs on one rank only, "
            f"unlike {', '.join(FAMILIES)}"
        )
    from services.engine.models.generic_loading import open_generic  # transformers takes seconds to import

    seed = config.random_seed if config.load_format == "random" else None
    model, decoder = open_generic(path, raw, device, dtype, seed)
    return model, dtype, decoder


def _dtype(config: EngineConfig, own: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, own if config.dtype == "auto" else config.dtype)
    return dtype


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


def _model_path(config: EngineConfig) -> Path:
    path = Path(config.model).expanduser()
    if not path.exists():
        raise ConfigError(f"model {config.model} is neither a folder nor a file here")
    return _gguf_file(path, config) or path


def _open_model(
    config: EngineConfig, path: Path
) -> tuple[ModelConfig, Callable[[torch.device, torch.dtype], WeightSource]]:
    """The model's shape, and a function that opens its weights once device and dtype are known."""
    if path.suffix == ".gguf":
        from services.engine.models.gguf import GgufModel  # reading GGUF needs a package that few deployments use

        opened = GgufModel(path)
        return opened.config, lambda device, dtype: opened  # noqa: ARG005
    model = read_model_config(path)
    if config.load_format == "random":
        return model, lambda device, dtype: RandomSource(device, dtype, config.random_seed)
    return model, lambda device, dtype: SafetensorsSource(path)  # noqa: ARG005
