"""From options and the engine's report to what a worker is made of."""

from pathlib import Path
from typing import NamedTuple

from services.common.config import WorkerConfig
from services.common.ipc import EngineReady
from services.common.messages import PROTOCOL, Limits, Role, WorkerHello
from services.common.model_source import model_name, resolve_model
from services.common.options import ConfigError
from services.common.text import Vocabulary
from services.common.tracing import Exporter
from services.router.output_length import LengthConfig
from services.router.work import RouterConfig
from services.worker.identity import WorkerIdentity


class Model(NamedTuple):
    """A model on this machine."""

    path: Path
    """The folder, or the GGUF file."""
    folder: Path
    """Where its tokenizer lies."""
    vocabulary: Vocabulary


def open_model(config: WorkerConfig) -> Model:
    """Find the model, downloading it when need be, and read its tokenizer. Blocks. Raises ConfigError."""
    path = resolve_model(config.model)
    folder = path.parent if path.is_file() else path
    try:
        return Model(path, folder, Vocabulary.load(folder))
    except ValueError as error:
        raise ConfigError(f"--model: {error}") from error


def router_config(config: WorkerConfig, ready: EngineReady) -> RouterConfig:
    """The Router's limits: the pool is the engine's, the rest is configured."""
    return RouterConfig(
        capacity_slots=ready.num_slots,
        max_running=config.max_running_requests,
        chunk_tokens=ready.chunk_tokens,
        step_budget_tokens=ready.chunk_tokens,
        max_waiting=config.max_queue,
        ungranted_share=config.pending_kv_share,
        lengths=LengthConfig(prior_tokens=config.prior_output_tokens),
    )


def span_exporter(config: WorkerConfig, identity: WorkerIdentity) -> Exporter | None:
    """Where spans go; None where there is no collector."""
    if config.otlp_endpoint is None:
        return None
    return Exporter(config.otlp_endpoint, f"sluice-{config.role}", identity.ref.worker_id)


def worker_hello(config: WorkerConfig, identity: WorkerIdentity, group: str, ready: EngineReady) -> WorkerHello:
    """How the worker introduces itself to masters."""
    limits = Limits(
        num_slots=ready.num_slots,
        max_running_requests=config.max_running_requests,
        max_context_tokens=ready.max_context_tokens,
        vocab_size=ready.vocab_size,
        eos_token_ids=ready.eos_token_ids,
        chunk_tokens=ready.chunk_tokens,
        kv_bytes_per_token=ready.kv_bytes_per_token,
    )
    role = Role(config.role)
    address = identity.grpc_address if role is Role.DECODE else ""
    model = config.served_model_name or model_name(config.model)
    return WorkerHello(PROTOCOL, identity.ref, role, group, model, address, limits, reads_batches=True)
