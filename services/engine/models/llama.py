"""Llama (arXiv 2307.09288, 2407.21783) and what shares its names: SmolLM2, Mistral without a sliding window."""

from services.engine.models.config import ModelConfig
from services.engine.models.layers import Attention, Block, Decoder, GatedMlp, Linear
from services.engine.models.weights import Weights


def build(config: ModelConfig, weights: Weights) -> Decoder:
    """Load a checkpoint of `LlamaForCausalLM`'s names; raises ConfigError naming a bad weight."""
    blocks = [_block(config, weights, i) for i in range(config.num_layers)]
    return decoder(config, weights, blocks)


def _block(config: ModelConfig, weights: Weights, i: int) -> Block:
    name = f"model.layers.{i}."
    return Block(
        attention_norm=weights.whole(name + "input_layernorm.weight", (config.hidden_size,)),
        attention=Attention(i, qkv(config, weights, name), output(config, weights, name)),
        mlp_norm=weights.whole(name + "post_attention_layernorm.weight", (config.hidden_size,)),
        mlp=gated_mlp(config, weights, name),
    )


def qkv(config: ModelConfig, weights: Weights, name: str) -> Linear:
    """Fuse the three input projections of attention; each is split by heads."""
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {"q_proj": q, "k_proj": kv, "v_proj": kv}
    parts = {f"{name}self_attn.{part}": n for part, n in rows.items()}
    return weights.split_outputs(parts, config.hidden_size, bias=config.attention_bias)


def output(config: ModelConfig, weights: Weights, name: str) -> Linear:
    """The output projection of attention; only Llama's carries the bias that `attention_bias` asks for."""
    bias = config.attention_bias and config.family != "qwen2"
    width = config.num_heads * config.head_dim
    return weights.split_inputs(name + "self_attn.o_proj", config.hidden_size, width, bias=bias)


def gated_mlp(config: ModelConfig, weights: Weights, name: str) -> GatedMlp:
    """Fuse gate and up."""
    width = config.intermediate_size
    parts = {f"{name}mlp.gate_proj": width, f"{name}mlp.up_proj": width}
    return GatedMlp(
        gate_up=weights.split_outputs(parts, config.hidden_size, bias=config.mlp_bias),
        down=weights.split_inputs(name + "mlp.down_proj", config.hidden_size, width, bias=config.mlp_bias),
    )


def decoder(config: ModelConfig, weights: Weights, blocks: list[Block]) -> Decoder:
    """Put embedding, final norm and head around the blocks."""
    shape = (config.vocab_size, config.hidden_size)
    embedding = weights.whole("model.embed_tokens.weight", shape)
    return Decoder(
        embedding=embedding,
        blocks=blocks,
        norm=weights.whole("model.norm.weight", (config.hidden_size,)),
        head=weights.own_rows(embedding) if config.tied_embeddings else weights.share_of_rows("lm_head.weight", shape),
        norm_eps=config.norm_eps,
    )
