"""Which backend runs a model: by name, or the best that this machine has."""

import logging

import torch
from torch import Tensor

from services.engine.backends.cpu import CpuBackend
from services.engine.backends.interface import Heads
from services.engine.config import ConfigError, EngineConfig
from services.engine.model_runner import ModelRunner
from services.engine.models.generic import GenericDecoder
from services.engine.models.layers import Decoder
from services.engine.ranks import Ranks
from services.engine.rows import Rows
from services.engine.runner import Runner
from services.engine.sampler import Sampler

log = logging.getLogger(__name__)


def choose_device(config: EngineConfig) -> torch.device:
    """Return the device of `config.backend`; raises ConfigError when it is not there."""
    if config.backend == "cpu" or (config.backend == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device or driver"
        raise ConfigError(
            f"--backend: the backend is 'cuda', but torch {torch.__version__} {why} on this machine; 'cpu' runs here, "
            "and 'auto' takes what there is"
        )
    if config.rank >= torch.cuda.device_count():
        raise ConfigError(
            f"--tp: {config.num_ranks} is not allowed; each rank takes a device of its own, and there are "
            f"{torch.cuda.device_count()}"
        )
    device = torch.device("cuda", config.rank)
    torch.cuda.set_device(device)
    log.info("device: %s, %.1f GiB", torch.cuda.get_device_name(device), torch.cuda.mem_get_info(device)[1] / (1 << 30))
    return device


def make_runner(
    decoder: Decoder | GenericDecoder, pool: Tensor, rows: Rows, heads: Heads, rope: tuple[Tensor, Tensor],
    ranks: Ranks, chunk_tokens: int,
) -> Runner:  # fmt: skip
    """Build what runs steps, of at most `chunk_tokens` prompt tokens, on the pool's device."""
    if pool.device.type != "cpu":
        from services.engine.backends.cuda.runner import CudaRunner  # needs triton, which a CPU deployment may lack

        return CudaRunner(decoder, pool, rows, heads, rope, ranks, chunk_tokens)
    backend = CpuBackend(pool, rows.table, heads, rope, ranks)
    adopted = backend.adopt(decoder) if isinstance(decoder, Decoder) else decoder
    return ModelRunner(adopted, backend, Sampler(decoder.vocab_size, pool.device))
