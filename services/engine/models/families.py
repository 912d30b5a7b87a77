"""Which file builds which family."""

from services.engine.models import llama, qwen2, qwen3, qwen3_moe
from services.engine.models.config import ModelConfig
from services.engine.models.layers import Decoder
from services.engine.models.weights import Weights

_BUILDERS = {"llama": llama.build, "qwen2": qwen2.build, "qwen3": qwen3.build, "qwen3_moe": qwen3_moe.build}


def build_decoder(config: ModelConfig, weights: Weights) -> Decoder:
    """Build the decoder of `config.family`, which `parse_model_config` has checked."""
    return _BUILDERS[config.family](config, weights)
