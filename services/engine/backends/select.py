"""Which backend runs: by name, or the best that this machine has."""

import torch
from torch import Tensor

from services.engine.backends.cpu import CpuBackend
from services.engine.backends.interface import Backend, Heads
from services.engine.config import ConfigError, EngineConfig
from services.engine.rows import Rows


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device of `config.backend`; raises ConfigError when it is not there."""
    if config.backend == "cuda" or (config.backend == "auto" and torch.cuda.is_available()):
        raise ConfigError("backend is 'cuda', which this build does not have; allowed: 'cpu'")
    return torch.device("cpu")


def make_backend(device: torch.device, pool: Tensor, rows: Rows, heads: Heads, rope: tuple[Tensor, Tensor]) -> Backend:
    """Build the backend of a device around the pool."""
    assert device.type == "cpu", device
    return CpuBackend(pool, rows.table, heads, rope)
