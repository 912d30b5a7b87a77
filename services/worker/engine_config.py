"""A worker's options as the engine process takes them: one mapping, written once to its stdin."""

from pathlib import Path
from typing import Any

from services.common.config import WorkerConfig
from services.worker.identity import WorkerIdentity

_SAME_NAME = (
    "role",
    "load_format",
    "dtype",
    "backend",
    "max_running_requests",
    "host_cache_gib",
    "chunk_tokens",
    "prefix_cache",
    "log_level",
    "log_format",
)
_ZERO_IS_AUTO = {
    "num_threads": "threads",
    "max_context_tokens": "max_context_tokens",
    "num_kv_tokens": "kv_pool_tokens",
}
_TRANSFER = {
    "listen_port": "transfer_port",
    "page_bytes": "transfer_page_bytes",
    "num_pages": "transfer_pages",
    "depth": "transfer_depth",
    "push_timeout_s": "transfer_deadline_s",
    "checksum": "verify_kv",
}


def engine_config(config: WorkerConfig, identity: WorkerIdentity, model: Path) -> dict[str, Any]:
    """JSON values by the engine's names. model: where the model lies on this machine."""
    values: dict[str, Any] = {name: getattr(config, name) for name in _SAME_NAME}
    values |= {name: getattr(config, ours) or None for name, ours in _ZERO_IS_AUTO.items()}
    return values | {
        "model": str(model),
        "random_seed": config.seed,
        "memory_fraction": config.kv_memory_fraction,
        "worker_id": identity.ref.worker_id,
        "incarnation": identity.ref.incarnation,
        "transfer_host": identity.host,
        "transfer": _transfer(config),
    }


def _transfer(config: WorkerConfig) -> dict[str, Any]:
    values = {name: getattr(config, ours) for name, ours in _TRANSFER.items()}
    if config.require_lane != "any":
        values["require_lane"] = config.require_lane
    for name in ("ucx_tls", "ucx_net_devices"):
        if getattr(config, name) is not None:
            values[name] = getattr(config, name)
    return values
