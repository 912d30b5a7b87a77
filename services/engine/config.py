"""The engine's configuration: read once, whole and frozen, from JSON that the control process writes."""

import sys
from pathlib import Path
from typing import Literal

import msgspec

Role = Literal["prefill", "decode", "mixed"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class ConfigError(Exception):
    """The configuration or the model folder cannot be used; the message names the key and what is allowed."""


PUSH_TAIL_TOKENS = 128


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One engine's settings; the control process fills it from its own flags of the same names."""

    endpoint: str
    """ZMQ endpoint that the control process has bound, such as `ipc:///run/sluice/engine.sock`."""
    model: str
    """A Hugging Face folder, or a `.gguf` file."""
    role: Role = "mixed"
    worker_id: str = "engine"
    incarnation: str = ""
    load_format: Literal["auto", "safetensors", "gguf", "random"] = "auto"
    """`random` needs only config.json; for benchmarks."""
    random_seed: int = 0
    dtype: Dtype = "auto"
    """Of weights, activations and KV. `auto` takes the checkpoint's."""
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    num_ranks: int = 1
    """Tensor parallel engine processes that share one model; each takes a device of its own, cuda:`rank`."""
    rank: int = 0
    rendezvous: str = ""
    """Where the ranks meet: a folder that they alone use, made anew for each start."""
    num_threads: int | None = None
    """CPU threads for torch; None leaves torch's choice."""
    max_context_tokens: int | None = None
    """None takes the model's own limit; never more than the pool holds."""
    num_kv_tokens: int | None = None
    """Slots in the KV pool; None sizes it by `memory_fraction`."""
    memory_fraction: float | None = None
    """Share of the memory that is free after the weights are loaded to give to the KV pool; None: cpu 0.25, cuda 0.85.
    """
    host_cache_gib: float = 0.0
    """Host memory of this rank for the KV of preempted sequences; 0: they are computed again."""
    max_running_requests: int = 256
    """Rows: sequences that compute or decode at once."""
    chunk_tokens: int = 512
    """Prompt tokens computed in one step, all prompts together."""
    push_tail_tokens: int = PUSH_TAIL_TOKENS
    """The last chunk of a prompt to hand over is split: at most so many tokens are left to push when compute ends."""
    prefix_cache: bool = True
    pipeline_depth: int | None = None
    """Steps launched before the oldest one's results are read; None takes the backend's (cpu 0, cuda 1)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    transfer_host: str = "127.0.0.1"
    """Address that the KV transfer listens on."""
    transfer: dict[str, int | float | str | bool] = {}
    """Options of the KV transfer; `transfer_setup.TransferOptions` lists them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for the first value out of range, naming its key."""
        self._check_ranks()
        for key in ("max_running_requests", "chunk_tokens", "push_tail_tokens"):
            _at_least(key, getattr(self, key), 1)
        for key in ("max_context_tokens", "num_kv_tokens", "num_threads"):
            if getattr(self, key) is not None:
                _at_least(key, getattr(self, key), 1)
        if self.host_cache_gib < 0:
            raise ConfigError(f"host_cache_gib is {self.host_cache_gib}; allowed: 0 or more")
        if self.pipeline_depth not in {None, 0, 1}:
            raise ConfigError(f"pipeline_depth is {self.pipeline_depth}; allowed: 0, 1")
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError(f"memory_fraction is {self.memory_fraction}; allowed: above 0, at most 1")

    def _check_ranks(self) -> None:
        _at_least("num_ranks", self.num_ranks, 1)
        if not 0 <= self.rank < self.num_ranks:
            raise ConfigError(f"rank is {self.rank}; allowed: 0 to {self.num_ranks - 1}")
        if self.num_ranks > 1 and not self.rendezvous:
            raise ConfigError("num_ranks above 1 needs a rendezvous")


def _at_least(key: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{key} is {value}; allowed: {least} or more")


def parse_config(text: str | bytes) -> EngineConfig:
    """Read JSON; raises ConfigError with the path of an unknown key or a bad value."""
    try:
        return msgspec.json.decode(text, type=EngineConfig)
    except msgspec.DecodeError as error:  # ValidationError too
        raise ConfigError(f"engine configuration: {error}") from error


def config_from_argv(argv: list[str]) -> EngineConfig:
    """Read the one argument: JSON itself, `@FILE`, or `-` for one line of stdin, which may stay open."""
    if len(argv) != 1:
        raise ConfigError("usage: python -m services.engine.main JSON | @FILE | -")
    (source,) = argv
    if source == "-":
        return parse_config(sys.stdin.readline())
    if source.startswith("@"):
        return parse_config(Path(source[1:]).read_bytes())
    return parse_config(source)
