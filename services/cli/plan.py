"""Which processes `sluice up` starts, with which options: decided before anything runs."""

import dataclasses
import os
import sys
from typing import Any, get_args

from services.common.config import (
    ClientOptions,
    GatewayConfig,
    LogOptions,
    ModelOptions,
    ProcessOptions,
    Role,
    ScheduleOptions,
    SelectionOptions,
    TransferOptions,
    UpConfig,
    WorkerConfig,
)
from services.common.options import Options, as_flags, specs
from services.common.ports import LOOPBACK, free_ports

GATEWAY = "pd_master"


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process to start: its name in the logs, its whole command line, and where it tells that it is ready."""

    name: str
    argv: tuple[str, ...]
    ready_url: str
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the process; None leaves it as it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything to start, the gateway last, and where clients find it."""

    processes: tuple[Process, ...]
    url: str
    grpc_address: str
    num_pairs: int
    """Pairs of a prefill and a decode worker, and mixed workers: so many ways a request can take when all is up."""


def make_plan(config: UpConfig) -> Plan:
    """Choose free ports and spell out each process's options. `config.model` is a path or hub id, not empty."""
    roles: list[Role] = [role for role in get_args(Role) for _ in range(getattr(config, role))]
    ports = free_ports(2 * len(roles) + 2)
    http_port = config.http_port or ports.pop()
    grpc_port = config.grpc_port or ports.pop()
    threads = config.threads or max(1, _num_cores() // (len(roles) * config.tp))
    workers = []
    addresses = []
    for index, role in enumerate(roles):
        worker = _worker(config, role, threads, ports.pop(), ports.pop())
        name, devices = f"{role}-{roles[:index].count(role)}", _devices_of(index, config)
        workers.append(_process(name, role, worker, f"http://{LOOPBACK}:{worker.http_port}", devices))
        addresses.append(f"{LOOPBACK}:{worker.grpc_port}")
    gateway = GatewayConfig(
        **_shared(config, ClientOptions, SelectionOptions, ProcessOptions, LogOptions),
        host=config.host,
        http_port=http_port,
        grpc_port=grpc_port,
        workers=tuple(addresses),
        drain_s=config.drain_s,
    )
    host, scheme = reachable(config.host), "https" if config.tls_cert_file else "http"
    url = f"{scheme}://{host}:{http_port}"
    processes = (*workers, _process(GATEWAY, "pd-master", gateway, url))
    num_pairs = config.prefill * config.decode + config.mixed
    return Plan(processes, url, f"{host}:{grpc_port}", num_pairs)


def reachable(host: str) -> str:
    """Return how this machine reaches a server that listens on `host`."""
    if host in ("", "0.0.0.0"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def _worker(config: UpConfig, role: Role, threads: int, grpc_port: int, http_port: int) -> WorkerConfig:
    shared = _shared(config, ModelOptions, ScheduleOptions, TransferOptions, LogOptions)
    shared["threads"] = threads
    return WorkerConfig(
        **shared, role=role, host=LOOPBACK, grpc_port=grpc_port, http_port=http_port, drain_s=config.drain_s
    )


def _shared(config: UpConfig, *groups: type[Options]) -> dict[str, Any]:
    return {spec.name: getattr(config, spec.name) for group in groups for spec in specs(group)}


def _process(name: str, command: str, config: Options, url: str, devices: str | None = None) -> Process:
    argv = (sys.executable, "-m", "services.cli.child", str(os.getpid()), command, *as_flags(config))
    return Process(name, argv, f"{url}/readiness", devices)


def _devices_of(worker: int, config: UpConfig) -> str | None:
    """The GPUs of the n-th worker first, as an engine takes them; the others stay visible for copies between cards."""
    if not config.devices:
        return None
    first = worker * config.tp % len(config.devices)
    return ",".join((*config.devices[first:], *config.devices[:first]))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))
