"""Qwen3 (arXiv 2505.09388): Llama with an RMS norm over each head of queries and keys before rope."""

from services.engine.models import llama
from services.engine.models.config import ModelConfig
from services.engine.models.layers import Attention, Block, Decoder
from services.engine.models.weights import Weights
from services.engine.ops import QkNorm


def build(config: ModelConfig, weights: Weights) -> Decoder:
    """Load a checkpoint of `Qwen3ForCausalLM`'s names; raises ConfigError naming a bad weight."""
    blocks = [_block(config, weights, i) for i in range(config.num_layers)]
    return llama.decoder(config, weights, blocks)


def _block(config: ModelConfig, weights: Weights, i: int) -> Block:
    name = f"model.layers.{i}."
    return Block(
        attention_norm=weights.whole(name + "input_layernorm.weight", (config.hidden_size,)),
        attention=attention(config, weights, i),
        mlp_norm=weights.whole(name + "post_attention_layernorm.weight", (config.hidden_size,)),
        mlp=llama.gated_mlp(config, weights, name),
    )


def attention(config: ModelConfig, weights: Weights, i: int) -> Attention:
    """Attention of layer i with its norms of queries and keys."""
    name = f"model.layers.{i}."
    norm = QkNorm(
        weights.whole(name + "self_attn.q_norm.weight", (config.head_dim,)),
        weights.whole(name + "self_attn.k_norm.weight", (config.head_dim,)),
        config.norm_eps,
    )
    return Attention(i, llama.qkv(config, weights, name), llama.output(config, weights, name), norm)
