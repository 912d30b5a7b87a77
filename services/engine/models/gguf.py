"""GGUF files: their metadata as a model config, their tensors under Hugging Face names, dequantised to float32.

llama.cpp stores the rows of q and k of Llama models with the two halves of each head interleaved; they are put back.
"""

from pathlib import Path

import gguf
import torch
from torch import Tensor

from services.engine.config import ConfigError
from services.engine.models.config import ModelConfig, parse_model_config

_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufModel:
    """One file: a model config and a WeightSource."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as GGUF: {error}") from error
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.config = self._read_config()

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See WeightSource."""
        tensor = self._tensors.get(gguf_name(name))
        if tensor is None:
            raise ConfigError(f"{self._path}: no tensor named {gguf_name(name)} (for {name})")
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).reshape(shape)
        if self.config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = shape[0] // self.config.head_dim
            return values.view(heads, self.config.head_dim // 2, 2, shape[1]).transpose(1, 2).reshape(shape)
        return values

    def _read_config(self) -> ModelConfig:
        family = self._field("general.architecture")
        if any(name.startswith("rope_freqs") for name in self._tensors):
            raise ConfigError(f"{self._path}: it carries rope_freqs (scaled rope); serve its safetensors instead")

        def own(key: str) -> object:
            return self._field(f"{family}.{key}")

        num_heads, width = own("attention.head_count"), own("embedding_length")
        plain_head_dim = width // num_heads if isinstance(width, int) and isinstance(num_heads, int) else None
        raw = {
            "model_type": family,
            "hidden_size": width,
            "intermediate_size": own("feed_forward_length"),
            "num_hidden_layers": own("block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": own("attention.head_count_kv"),
            "head_dim": own("attention.key_length") or plain_head_dim,
            "vocab_size": int(self._tensors["token_embd.weight"].shape[1]),
            "max_position_embeddings": own("context_length"),
            "rms_norm_eps": own("attention.layer_norm_rms_epsilon"),
            "rope_theta": own("rope.freq_base"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": family == "llama" and "blk.0.attn_q.bias" in self._tensors,
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
        }
        return parse_model_config(raw, str(self._path))

    def _field(self, key: str) -> object:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def gguf_name(name: str) -> str:
    """Hugging Face name of a weight -> its name in GGUF."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_INSIDE[part]}.{kind}"
