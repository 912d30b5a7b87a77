"""A model's shape, read from a Hugging Face config.json (or the same keys out of a GGUF file)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.engine.config import ConfigError


class RopeConfig(msgspec.Struct, frozen=True):
    """Rotary position embedding: base frequency and the scaling rule's own parameters."""

    theta: float
    kind: str
    parameters: dict[str, Any]


class ExpertsConfig(msgspec.Struct, frozen=True):
    """Routed experts of a mixture model."""

    num_experts: int
    num_chosen: int
    """Experts that a token takes."""
    intermediate_size: int
    """Of one expert."""
    normalised: bool
    """The chosen experts' probabilities are made to sum to 1."""
    every: int
    """Layers `every - 1`, `2 * every - 1`, ... have experts, but for `plain_layers`."""
    plain_layers: tuple[int, ...]

    def routes(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return layer not in self.plain_layers and (layer + 1) % self.every == 0


class ModelConfig(msgspec.Struct, frozen=True):
    """What every family needs to build its decoder. Counts are of the whole model, before any tensor parallel split."""

    family: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_tokens: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    dtype: str
    """The checkpoint's own."""
    experts: ExpertsConfig | None = None
    """None: every layer has one plain MLP."""


FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
_ROPE_KINDS = ("default", "linear", "llama3")
_DTYPES = ("float32", "bfloat16", "float16")


def read_model_config(folder: Path) -> ModelConfig:
    """Read the shape of a family that has a file here; raises ConfigError naming what is missing."""
    return parse_model_config(read_raw_config(folder), str(folder / "config.json"))


def read_raw_config(folder: Path) -> dict[str, Any]:
    """Read `folder`/config.json, its end tokens by generation_config.json where that has some. Raises ConfigError."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"model folder {folder} has no config.json")
    raw = _read_json(path)
    generation = folder / "generation_config.json"
    eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    return raw if eos is None else {**raw, "eos_token_id": eos}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return value


def parse_model_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """Build the shape from config.json's keys; `source` names the file in errors."""
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"{source}: model_type is {family!r}; supported: {', '.join(FAMILIES)}")
    _refuse_unsupported(raw, source)
    num_heads = _positive(raw, "num_attention_heads", source)
    hidden_size = _positive(raw, "hidden_size", source)
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size", source),
        num_layers=_positive(raw, "num_hidden_layers", source),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or (128 if family in {"qwen3", "qwen3_moe"} else hidden_size // num_heads)),
        vocab_size=_positive(raw, "vocab_size", source),
        max_context_tokens=_positive(raw, "max_position_embeddings", source),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, source),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        eos_token_ids=eos_token_ids(raw.get("eos_token_id")),
        dtype=dtype_name(raw, source),
        experts=_experts(raw, source) if family == "qwen3_moe" else None,
    )


def _experts(raw: Mapping[str, Any], source: str) -> ExpertsConfig:
    num_experts = _positive(raw, "num_local_experts" if "num_local_experts" in raw else "num_experts", source)
    num_chosen = _positive(raw, "num_experts_per_tok", source)
    if num_chosen > num_experts:
        raise ConfigError(f"{source}: num_experts_per_tok is {num_chosen}; there are {num_experts} experts")
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=_positive(raw, "moe_intermediate_size", source),
        normalised=bool(raw.get("norm_topk_prob", False)),
        every=int(raw.get("decoder_sparse_step") or 1),
        plain_layers=tuple(raw.get("mlp_only_layers") or ()),
    )


def _refuse_unsupported(raw: Mapping[str, Any], source: str) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{source}: hidden_act is {raw['hidden_act']!r}; supported: 'silu'")
    if raw.get("use_sliding_window"):
        raise ConfigError(f"{source}: use_sliding_window is true; only full attention is supported")
    if raw.get("quantization_config"):
        raise ConfigError(f"{source}: quantization_config is set; only unquantised weights are supported")


def _positive(raw: Mapping[str, Any], key: str, source: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{source}: {key} is {value!r}; expected a positive integer")
    return value


def _rope(raw: Mapping[str, Any], source: str) -> RopeConfig:
    """Take `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (4)."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _ROPE_KINDS:
        raise ConfigError(f"{source}: rope type is {kind!r}; supported: {', '.join(_ROPE_KINDS)}")
    theta = parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0
    return RopeConfig(theta=float(theta), kind=kind, parameters=parameters)


def eos_token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """The ids as a config has them: one, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def dtype_name(raw: Mapping[str, Any], source: str) -> str:
    """The checkpoint's type, by the name that torch has for it."""
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if name not in _DTYPES:
        raise ConfigError(f"{source}: dtype is {name!r}; supported: {', '.join(_DTYPES)}")
    return name
