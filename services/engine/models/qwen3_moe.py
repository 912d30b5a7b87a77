"""Qwen3 with routed experts in place of the MLP, in all layers but those that the config names (arXiv 2505.09388)."""

import torch

from services.engine.models import llama, qwen3
from services.engine.models.config import ExpertsConfig, ModelConfig
from services.engine.models.experts import RoutedMlp
from services.engine.models.layers import Block, Decoder
from services.engine.models.weights import Weights


def build(config: ModelConfig, weights: Weights) -> Decoder:
    """Load a checkpoint of `Qwen3MoeForCausalLM`'s names; raises ConfigError naming a bad weight."""
    return llama.decoder(config, weights, [_block(config, weights, i) for i in range(config.num_layers)])


def _block(config: ModelConfig, weights: Weights, i: int) -> Block:
    experts = config.experts
    assert experts is not None, "parse_model_config gives this family experts"
    name = f"model.layers.{i}."
    mlp = _routed(config, experts, weights, name) if experts.routes(i) else llama.gated_mlp(config, weights, name)
    return Block(
        attention_norm=weights.whole(name + "input_layernorm.weight", (config.hidden_size,)),
        attention=qwen3.attention(config, weights, i),
        mlp_norm=weights.whole(name + "post_attention_layernorm.weight", (config.hidden_size,)),
        mlp=mlp,
    )


def _routed(config: ModelConfig, experts: ExpertsConfig, weights: Weights, name: str) -> RoutedMlp:
    """Fuse gate and up of each expert, and all experts into one tensor."""
    hidden, width = config.hidden_size, experts.intermediate_size
    gate_up, down = [], []
    for e in range(experts.num_experts):
        expert = f"{name}mlp.experts.{e}."
        parts = {expert + "gate_proj": width, expert + "up_proj": width}
        gate_up.append(weights.split_outputs(parts, hidden, bias=False).weight)
        down.append(weights.split_inputs(expert + "down_proj", hidden, width, bias=False).weight)
    return RoutedMlp(
        router=weights.whole(name + "mlp.gate.weight", (experts.num_experts, hidden)),
        gate_up=torch.stack(gate_up),
        down=torch.stack(down),
        num_chosen=experts.num_chosen,
        normalised=experts.normalised,
    )
