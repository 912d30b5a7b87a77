"""Whether a preempted sequence's KV is worth a way to host memory and back, or is sooner computed again. Pure."""

from typing import NamedTuple

from services.engine.models.config import ModelConfig


class Costs(NamedTuple):
    """What one model on one kind of device takes for a copy, and for computing."""

    copy_s_per_token: float
    """To the host and back."""
    copy_s: float
    """However short: a turn passes before a sequence that comes back goes on."""
    compute_s_per_token: float


class _Speeds(NamedTuple):
    bytes_per_s: float
    copy_s: float
    flops_per_s: float


_SPEEDS = {"cuda": _Speeds(40e9, 2e-3, 500e12), "cpu": _Speeds(4e9, 1e-4, 50e9)}
"""Orders of magnitude: what they decide is a matter of tens or hundreds of tokens. Constants, because ranks must agree.
"""


def pays(num_tokens: int, costs: Costs) -> bool:
    """Whether copying so many tokens is cheaper than computing them."""
    return costs.copy_s + num_tokens * costs.copy_s_per_token < num_tokens * costs.compute_s_per_token


def costs_of(model: ModelConfig, kv_bytes_per_token: int, num_ranks: int, device_type: str) -> Costs:
    """Of a rank that holds `kv_bytes_per_token`; `device_type` is torch's, `cpu` or `cuda`."""
    speeds = _SPEEDS[device_type]
    flops = 2 * weights_of_a_token(model) / num_ranks
    return Costs(2 * kv_bytes_per_token / speeds.bytes_per_s, speeds.copy_s, flops / speeds.flops_per_s)


def weights_of_a_token(model: ModelConfig) -> int:
    """Weights of the products that a prompt token passes, without the head."""
    attention = model.hidden_size * model.head_dim * 2 * (model.num_heads + model.num_kv_heads)
    total = model.num_layers * attention
    for layer in range(model.num_layers):
        experts = model.experts
        routed = experts is not None and experts.routes(layer)
        width = experts.num_chosen * experts.intermediate_size if experts and routed else model.intermediate_size
        total += 3 * model.hidden_size * width
    return total
