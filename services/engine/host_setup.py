"""The host cache from its configuration: how many pages of host memory there are."""

from services.engine.config import ConfigError, EngineConfig
from services.engine.counters import EngineCounters
from services.engine.host_cache import HostCache
from services.engine.host_rule import costs_of
from services.engine.load import LoadedModel

PAGE_TOKENS = 128
"""Large enough for a bus (16 MiB of an 8B model), small beside the sequences that are worth keeping."""


def open_host_cache(config: EngineConfig, model: LoadedModel, counters: EngineCounters) -> HostCache:
    """Take `host_cache_gib` of host memory; none in a prefill engine, which preempts nothing. Raises ConfigError."""
    page_bytes = PAGE_TOKENS * model.kv_bytes_per_token
    num_bytes = 0 if config.role == "prefill" else int(config.host_cache_gib * (1 << 30))
    if 0 < num_bytes < page_bytes:
        raise ConfigError(
            f"host_cache_gib is {config.host_cache_gib}; allowed: 0, or at least the {page_bytes / (1 << 30):.4f} of "
            f"one page of {PAGE_TOKENS} tokens"
        )
    backend = model.runner.backend
    try:
        pages = backend.host_pages(num_bytes // page_bytes, PAGE_TOKENS)
    except RuntimeError as error:  # torch's allocators of host memory raise no other
        raise ConfigError(
            f"{config.host_cache_gib} GiB of host memory could not be had; lower host_cache_gib (--host-cache-gib): "
            f"{error}"
        ) from error
    costs = costs_of(model.config, model.kv_bytes_per_token, model.ranks.count, backend.device.type)
    return HostCache(pages, costs, counters)
