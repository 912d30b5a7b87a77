"""The KV pool's memory: how many slots there is room for, and one plain allocation of them."""

import logging
import os
from pathlib import Path

import torch
from torch import Tensor

from services.engine.config import ConfigError, EngineConfig
from services.engine.models.config import ModelConfig

log = logging.getLogger(__name__)

_GIB = 1 << 30
_DEFAULT_FRACTION = {"cpu": 0.25, "cuda": 0.85}
"""A device is the engine's own, and what is left takes a chunk's activations; a CPU's memory is shared."""


def kv_bytes_per_token(model: ModelConfig, dtype: torch.dtype) -> int:
    """K and V of one token in all layers."""
    return model.num_layers * 2 * model.num_kv_heads * model.head_dim * dtype.itemsize


def choose_num_slots(config: EngineConfig, bytes_per_token: int, device: torch.device) -> int:
    """`num_kv_tokens`, else what `memory_fraction` of the free memory holds. Raises ConfigError when none."""
    free = _free_bytes(device)
    if device.type == "cpu":
        free //= config.num_ranks  # they share the machine's memory
    if config.num_kv_tokens is not None:
        need = config.num_kv_tokens * bytes_per_token
        if need > free:
            raise ConfigError(
                f"a KV pool of {config.num_kv_tokens} tokens takes {need / _GIB:.1f} GiB and {free / _GIB:.1f} GiB are "
                f"free; lower num_kv_tokens (--kv-pool-tokens) to at most {free // bytes_per_token}"
            )
        return config.num_kv_tokens
    fraction = config.memory_fraction or _DEFAULT_FRACTION[device.type]
    slots = int(free * fraction) // bytes_per_token
    if slots < 1:
        raise ConfigError(
            f"--kv-memory-fraction: {fraction} of {free / _GIB:.1f} GiB free after loading holds no token of "
            f"{bytes_per_token} bytes; raise it or free memory"
        )
    return slots


def allocate_pool(
    model: ModelConfig, num_slots: int, dtype: torch.dtype, device: torch.device, num_ranks: int = 1
) -> Tensor:
    """[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]; the last slot is zero and absorbs padding.

    The heads are this rank's share of the model's.
    """
    shape = (model.num_layers, num_slots + 1, 2 * model.num_kv_heads // num_ranks, model.head_dim)
    try:
        pool = torch.empty(shape, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:  # torch's CPU allocator raises RuntimeError, CUDA's a kind of it
        size = num_slots * kv_bytes_per_token(model, dtype) / _GIB
        raise ConfigError(
            f"the KV pool of {num_slots} tokens ({size:.1f} GiB) could not be allocated; lower num_kv_tokens "
            f"(--kv-pool-tokens) or memory_fraction (--kv-memory-fraction): {error}"
        ) from error
    pool[:, num_slots].zero_()
    log.info("KV pool: %d slots, %.2f GiB on %s", num_slots, pool.nbytes / _GIB, device)
    return pool


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():  # counts what the system would give up from its page cache
        lines = (line.split() for line in meminfo.read_text().splitlines())
        free = [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"] or free
    return min([free[0], *_container_free_bytes()])


def _container_free_bytes() -> list[int]:
    """What the container's limit leaves (cgroup v2); empty without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text()
    except OSError:
        return []
    return [] if limit == "max" else [int(limit) - int(used)]
