"""Rotary position embedding tables (RoFormer, arXiv 2104.09864), in the half-split layout of Llama checkpoints."""

import math

import torch
from torch import Tensor

from services.engine.models.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Return the angle per position of each pair: [head_dim / 2], float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / float(rope.parameters["factor"])
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's rule: long wavelengths are divided by `factor`, short ones kept, those between blended."""
    p = rope.parameters
    factor, low, high = float(p["factor"]), float(p["low_freq_factor"]), float(p["high_freq_factor"])
    original = float(p["original_max_position_embeddings"])
    wavelength = 2 * math.pi / plain
    blend = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return blend * plain + (1 - blend) * plain / factor


def rope_tables(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """Return cos and signed sin, each [num_positions, head_dim], float32.

    With the sign of the rotation folded into sin, rotating is `x * cos + roll(x, head_dim / 2) * sin`: the first half
    of sin is negative, because there the rolled partner is -x2.
    """
    angles = torch.outer(torch.arange(num_positions).float(), inverse_frequencies(rope, head_dim))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
