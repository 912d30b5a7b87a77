"""From a folder to a `GenericDecoder`: the model as transformers loads it, and its shape as its attention shows it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from services.engine.config import ConfigError
from services.engine.models.config import FAMILIES, ModelConfig, RopeConfig, eos_token_ids
from services.engine.models.generic import GenericDecoder, Seen

log = logging.getLogger(__name__)

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
_GROWING_ROPES = {"dynamic", "longrope"}
"""They change with the longest position of a step, whoever it belongs to, beyond the original context."""
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


def open_generic(
    folder: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype, random_seed: int | None
) -> tuple[ModelConfig, GenericDecoder]:
    """Load a model; with random weights where a seed is given. Raises ConfigError saying what is not supported.

    raw: its config.json, with generation_config.json's end tokens.
    """
    family = str(raw.get("model_type"))
    try:
        config = _read_config(folder)
        decoder = GenericDecoder(_load(folder, config, device, dtype, random_seed))
        shape = _shape_of(config, raw, _probe(decoder, device), decoder.vocab_size)
    except ConfigError as error:
        raise ConfigError(f"{folder}: model_type {family!r} would run through transformers: {error}") from error
    log.warning(
        "%s runs through transformers' modules, without fused kernels or graphs: slower than %s, which have "
        "implementations of their own", family, ", ".join(FAMILIES),
    )  # fmt: skip
    return shape, decoder


def _probe(decoder: GenericDecoder, device: torch.device) -> Seen:
    try:
        return decoder.probe(device)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(f"a forward of two tokens without a cache failed: {error}") from error


def _read_config(folder: Path) -> Any:  # noqa: ANN401  transformers gives no types
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"it cannot read config.json: {error}") from error
    if config.is_encoder_decoder:
        raise ConfigError("an encoder beside the decoder (cross-attention) is not supported")
    parts = [key for key in ("vision_config", "audio_config", "text_config") if getattr(config, key, None) is not None]
    if parts:
        raise ConfigError(f"a multimodal model is not supported; its config has {', '.join(parts)}")
    if getattr(config, "quantization_config", None):
        raise ConfigError("quantization_config is set; only unquantised weights are supported")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if others:
        raise ConfigError(f"layer_types {', '.join(others)} are not supported; only attention is")
    return config


def _load(folder: Path, config: Any, device: torch.device, dtype: torch.dtype, random_seed: int | None) -> Any:  # noqa: ANN401
    from transformers import AutoModelForCausalLM

    try:
        if random_seed is not None:
            torch.manual_seed(random_seed)
            with device:
                return AutoModelForCausalLM.from_config(config, dtype=dtype).to(device).eval()
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, found = loaded
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"it cannot load it: {error}") from error
    if found["missing_keys"]:
        raise ConfigError(f"its files have no weights named {', '.join(sorted(found['missing_keys'])[:3])}")
    return model.to(device).eval()


def _shape_of(config: Any, raw: Mapping[str, Any], seen: Seen, vocab_size: int) -> ModelConfig:  # noqa: ANN401
    num_layers = int(config.num_hidden_layers)
    if len(seen.keys) != num_layers:
        raise ConfigError(
            f"{len(seen.keys)} of its {num_layers} layers attend through transformers' attention interface; all must"
        )
    if len(set(seen.keys)) > 1 or len(set(seen.queries)) > 1:
        raise ConfigError("layers with different heads are not supported")
    (_, num_kv_heads, _, head_dim), (_, num_heads, _, _) = seen.keys[0], seen.queries[0]
    hidden_size = int(config.hidden_size)
    return ModelConfig(
        family=str(config.model_type),
        hidden_size=hidden_size,
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_context_tokens=_max_context(config, seen),
        norm_eps=0.0,
        rope=RopeConfig(10000.0, "default", {}),  # its own modules rotate
        tied_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=eos_token_ids(raw.get("eos_token_id")),
        dtype="",
    )


def _max_context(config: Any, seen: Seen) -> int:  # noqa: ANN401
    """The model's own limit, or less: every context sees all of itself, and positions alone say how it rotates."""
    own = [int(limit) for key in _CONTEXT_KEYS if (limit := getattr(config, key, None))]
    if not own:
        raise ConfigError(f"its config says no context length ({', '.join(_CONTEXT_KEYS)})")
    limits = {"its context": own[0]}
    if seen.windows:
        limits["its attention's window"] = min(seen.windows)
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        limits["sliding_window"] = int(config.sliding_window)
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        limits["attention_chunk_size"] = int(config.attention_chunk_size)
    if _rope_types(config) & _GROWING_ROPES:
        original = getattr(config, "original_max_position_embeddings", None) or _original_positions(config)
        limits["original_max_position_embeddings"] = int(original or own[0])
    what, least = min(limits.items(), key=lambda limit: limit[1])
    if least < own[0]:
        log.warning("contexts are limited to %d tokens, %s; the model has %d", least, what, own[0])
    return least


def _ropes(config: Any) -> list[Mapping[str, Any]]:  # noqa: ANN401
    """The config's rotations: one, or one a kind of layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [part for part in rope.values() if isinstance(part, Mapping)] or [rope]


def _rope_types(config: Any) -> set[str]:  # noqa: ANN401
    return {str(rope.get("rope_type") or rope.get("type") or "default") for rope in _ropes(config)}


def _original_positions(config: Any) -> int | None:  # noqa: ANN401
    return min(
        (rope[key] for rope in _ropes(config) if (key := "original_max_position_embeddings") in rope), default=None
    )
