"""Names of a model and of a KV layout: engines pair only when both are equal (R13)."""

import hashlib
from pathlib import Path

import torch

from services.engine.models.config import ModelConfig

_HASHED = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json",
    "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "model.safetensors.index.json",
)  # fmt: skip


def model_fingerprint(model: Path, load: str) -> str:
    """Hash config, tokenizer, chat template and weight index by content, weights by name and size.

    `load` says how the weights come about where files do not (random weights and their seed).
    """
    digest = hashlib.sha256(load.encode())
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    for file in files:
        if file.name in _HASHED:
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
        elif file.suffix in {".safetensors", ".gguf"}:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
    return digest.hexdigest()[:32]


def kv_layout(config: ModelConfig, dtype: torch.dtype) -> str:
    """Hash of what a token's KV is, all ranks together: how many there are decides only who sends which heads."""
    parts = (dtype, config.num_layers, config.num_kv_heads, config.head_dim)
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]
