"""Tiny random models of each family, saved as Hugging Face folders, and transformers' own greedy output for them."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from tests.unit.api.tiny_model import CHATML, write_tiny_model

VOCAB = 211
EOS = 210
MAX_CONTEXT = 256

_SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": MAX_CONTEXT, "eos_token_id": EOS, "bos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_EXPERTS = {
    "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
    "mlp_only_layers": [1], "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "llama-biased": (LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3_ROPE, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3-moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, _EXPERTS),
}  # fmt: skip
GENERIC: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {
        "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM, {}),
    "phi3": (Phi3Config, Phi3ForCausalLM, {"sliding_window": None}),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM, {}),
    "gpt-neox": (GPTNeoXConfig, GPTNeoXForCausalLM, {"rotary_pct": 0.5}),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {"head_dim": 16}),
}  # fmt: skip
"""Families without a file of their own."""


def make_model(family: str, folder: Path, *, seed: int = 0, **shape: int) -> Path:
    """Save a tiny model; weights are wide enough that greedy output varies and has no near ties."""
    config_class, model_class, extra = (FAMILIES | GENERIC)[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**{**_SHAPE, **extra, **shape}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def make_worded_model(folder: Path, template: str = CHATML, **shape: int) -> Path:
    """A tiny llama with a byte-level tokenizer of a few words; its end is the last special token."""
    write_tiny_model(folder, template)
    vocab_size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    return make_model("llama", folder, vocab_size=vocab_size, eos_token_id=vocab_size - 1, **shape)


@lru_cache(maxsize=8)
def _reference_model(folder: Path, dtype: str) -> Any:  # noqa: ANN401  transformers gives no types
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


@lru_cache(maxsize=4096)
def reference_greedy(folder: Path, prompt: tuple[int, ...], num_tokens: int, dtype: str = "float32") -> list[int]:
    """What transformers generates, ending early at EOS (which is included)."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = _reference_model(folder, dtype).generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    """transformers' logits after each of `tokens`: [num_tokens, vocab_size], float32."""
    with torch.inference_mode():
        logits: torch.Tensor = _reference_model(folder, "float32")(torch.tensor([tokens])).logits[0]
    return logits


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random ids without EOS."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, EOS, (length,), generator=generator).tolist())
