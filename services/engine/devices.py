"""Which backend runs a model: by name, or the best that this machine has."""

import torch
from torch import Tensor

from services.engine.backends.cpu import CpuBackend
from services.engine.backends.interface import Heads
from services.engine.config import ConfigError, EngineConfig
from services.engine.model_runner import ModelRunner
from services.engine.models.layers import Decoder
from services.engine.rows import Rows
from services.engine.runner import Runner
from services.engine.sampler import Sampler


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device of `config.backend`; raises ConfigError when it is not there."""
    if config.backend == "cuda" or (config.backend == "auto" and torch.cuda.is_available()):
        raise ConfigError("backend is 'cuda', which this build does not have; allowed: 'cpu'")
    return torch.device("cpu")


def make_runner(decoder: Decoder, pool: Tensor, rows: Rows, heads: Heads, rope: tuple[Tensor, Tensor]) -> Runner:
    """Build what runs steps on the pool's device."""
    assert pool.device.type == "cpu", pool.device
    backend = CpuBackend(pool, rows.table, heads, rope)
    return ModelRunner(backend.adopt(decoder), backend, Sampler())
