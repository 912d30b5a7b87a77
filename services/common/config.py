"""Every option of every process: pd_master, workers, and `sluice up`. `services.common.options` reads them.

A count is `0` where the process is to choose it itself; units are in the names.
"""

import dataclasses
import re
from typing import Literal

from services.common.options import ConfigError, Options, option

Role = Literal["prefill", "decode", "mixed"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "safetensors", "gguf", "random"]
DiscoveryKind = Literal["static", "kubernetes"]
PORT_MAX = 65535
_COLLECTOR = re.compile(
    r"https?://([\w.~%:-]+@)?([\w.-]+|\[[\da-f:.]+\])(:(?P<port>\d{1,5}))?(/((?![?#])[!-~])*)?",
    re.ASCII | re.IGNORECASE,
)


def split_address(text: str, key: str) -> tuple[str, int]:
    """Split `host:port`; raises ConfigError naming `key`. An IPv6 host may stand in brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ConfigError(f"{key}: {text!r} is not allowed; it takes host:port with a port from 1 to {PORT_MAX}")
    return host.strip("[]"), int(port)


def check_collector(text: str) -> None:
    """Raise ConfigError unless `text` is a URL that spans can be sent below."""
    url = _COLLECTOR.fullmatch(text)
    if url is None or not 0 < int(url["port"] or PORT_MAX) <= PORT_MAX:
        raise ConfigError(f"--otlp-endpoint: {text!r} is not allowed; it takes http://host:port or https://host:port")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogOptions(Options):
    """How a process logs and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least severe line to log", group="logs")
    log_format: Literal["text", "json"] = option("text", "text for people, json for collectors", group="logs")
    otlp_endpoint: str | None = option(
        None,
        "OpenTelemetry collector (OTLP over HTTP) that gets a trace of each request; none makes no traces",
        group="logs",
        metavar="URL",
    )

    def check(self) -> None:
        """A collector's address is a URL."""
        super().check()
        if self.otlp_endpoint is not None:
            check_collector(self.otlp_endpoint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """Which model a worker serves and on what."""

    model: str = option(
        help="Hugging Face folder (config.json, tokenizer, safetensors), folder with a GGUF file, or a hub id",
        group="model",
        metavar="PATH_OR_HUB_ID",
    )
    served_model_name: str | None = option(
        None, "name that clients use; none takes the last part of the model's path", group="model", metavar="NAME"
    )
    dtype: Dtype = option("auto", "type of weights and KV; auto takes the model's own", group="model")
    load_format: LoadFormat = option(
        "auto", "where weights come from; random makes some of the config's shape, for benchmarks", group="model"
    )
    max_context_tokens: int = option(0, "longest prompt plus output; 0 takes the model's own", group="model", minimum=0)
    seed: int = option(0, "seed of random weights", group="model", minimum=0)
    backend: Backend = option("auto", "device to run on; auto takes cuda where there is a card", group="device")
    threads: int = option(0, "CPU threads of the engine; 0 takes one for each core", group="device", minimum=0)
    tp: int = option(1, "tensor-parallel ranks, one device each", group="device", minimum=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions(Options):
    """How much a worker takes in at once."""

    max_running_requests: int = option(256, "sequences in one step at most", group="scheduling", minimum=1)
    kv_pool_tokens: int = option(
        0, "tokens the KV pool holds; 0 sizes it by --kv-memory-fraction", group="scheduling", minimum=0
    )
    kv_memory_fraction: float = option(
        0.25,
        "share of the memory left free by the weights that the KV pool takes; a GPU of one's own bears 0.9",
        group="scheduling",
        minimum=0.01,
        maximum=0.98,
    )
    host_cache_gib: float = option(
        4.0,
        "host memory of each rank that keeps the KV of preempted sequences until they resume; 0 computes it again",
        group="scheduling",
        minimum=0.0,
    )
    chunk_tokens: int = option(
        512, "prompt tokens computed in one step, of all prompts together", group="scheduling", minimum=1
    )
    prefix_cache: bool = option(
        True, "keep the KV of finished prompts for prompts that begin alike", group="scheduling"
    )
    max_queue: int = option(
        1024, "requests that may wait for admission; beyond it clients get 429", group="scheduling", minimum=1
    )
    prior_output_tokens: int = option(
        256, "output length assumed until enough requests have ended", group="scheduling", minimum=1
    )
    pending_kv_share: float = option(
        0.5,
        "share of a prefill worker's pool that may hold KV waiting for room on a decode worker",
        group="scheduling",
        minimum=0.05,
        maximum=1.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferOptions(Options):
    """How KV crosses from prefill to decode workers."""

    transfer_page_bytes: int = option(
        4 << 20, "size of a transfer page, one message; 64 MiB suits a GPU", group="KV transfer", minimum=64 << 10
    )
    transfer_pages: int = option(8, "transfer pages of each rank", group="KV transfer", minimum=2)
    transfer_depth: int = option(4, "messages in flight to one peer at most", group="KV transfer", minimum=1)
    transfer_deadline_s: float = option(
        30.0, "a message that takes longer ends the connection", group="KV transfer", minimum=0.1
    )
    ucx_tls: str | None = option(
        None,
        "UCX_TLS for the engine: the lanes UCX may use, such as rc,cuda_ipc,sm,tcp",
        group="KV transfer",
        metavar="LIST",
    )
    ucx_net_devices: str | None = option(
        None, "UCX_NET_DEVICES for the engine, such as mlx5_0:1", group="KV transfer", metavar="LIST"
    )
    require_lane: Literal["any", "rdma", "cuda_ipc", "sm", "tcp"] = option(
        "any", "refuse a pair of workers whose KV would go over another lane", group="KV transfer"
    )
    verify_kv: bool = option(False, "send and compare a checksum of the KV", group="KV transfer")

    def check(self) -> None:
        """Messages in flight have a page each."""
        super().check()
        if self.transfer_depth > self.transfer_pages:
            raise ConfigError(
                f"--transfer-depth: {self.transfer_depth} is not allowed; "
                f"at most --transfer-pages {self.transfer_pages}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodTlsOptions(Options):
    """Mutual TLS of the gRPC sessions between masters and workers, and between workers: all of them or none."""

    pod_tls_cert_file: str | None = option(
        None,
        "certificate chain (PEM) that this process shows to masters and workers; none speaks plain text to them",
        group="TLS between pods",
        metavar="PATH",
    )
    pod_tls_key_file: str | None = option(None, "its private key (PEM)", group="TLS between pods", metavar="PATH")
    pod_tls_ca_file: str | None = option(
        None, "authorities (PEM) that their certificates must come from", group="TLS between pods", metavar="PATH"
    )
    pod_tls_name: str = option(
        "sluice-pods", "name that the certificate of each worker bears", group="TLS between pods", metavar="NAME"
    )

    def check(self) -> None:
        """Certificate, key and authorities go together."""
        super().check()
        names = ("pod_tls_cert_file", "pod_tls_key_file", "pod_tls_ca_file")
        missing = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is None]
        if 0 < len(missing) < len(names):
            raise ConfigError(f"{missing[0]} must be given too: certificate, key and authorities go together")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerConfig(ModelOptions, ScheduleOptions, TransferOptions, PodTlsOptions, LogOptions):
    """A prefill, decode or mixed worker: its control process, and the engine that it starts."""

    role: Role = option("mixed", "what the worker does; the command sets it", group="network")
    host: str = option("0.0.0.0", "address to listen on", group="network")
    grpc_port: int = option(
        0, "gRPC for masters and peers; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX
    )
    http_port: int = option(
        0, "HTTP for /health, /readiness and /metrics; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX
    )
    advertise_address: str | None = option(
        None,
        "host:port at which others reach this worker's gRPC; none takes --host (or this host's name) and --grpc-port",
        group="network",
        metavar="HOST:PORT",
    )
    transfer_port: int = option(
        0, "first port of the KV transfer, one a rank; 0 takes free ones", group="network", minimum=0, maximum=PORT_MAX
    )
    reservation_lease_s: float = option(
        30.0, "reserved room is given back when nothing was heard of it for this long", group="times", minimum=1.0
    )
    master_timeout_s: float = option(
        5.0, "a master's requests are aborted when its session is gone for this long", group="times", minimum=0.5
    )
    engine_stall_s: float = option(
        60.0, "a step that takes longer makes the worker unready", group="times", minimum=1.0
    )
    drain_s: float = option(30.0, "time to finish running work after SIGTERM", group="times", minimum=0.0)

    def check(self) -> None:
        """An advertised address is host:port."""
        super().check()
        if self.advertise_address is not None:
            split_address(self.advertise_address, "--advertise-address")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionOptions(Options):
    """How workers are chosen."""

    local_prefill_tokens: int = option(
        256,
        "prompt tokens that a decode worker may compute itself where that is sooner; 0 leaves all to prefill",
        group="limits",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessOptions(Options):
    """How many processes a gateway is."""

    processes: int = option(
        1,
        "pd_master processes that share the ports; limits are divided over them",
        group="processes",
        minimum=1,
        maximum=64,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientOptions(Options):
    """Who may ask a gateway, over what, and for how much."""

    api_keys_file: str | None = option(
        None, "file of `NAME KEY` lines; requests must carry one of the keys", group="limits", metavar="PATH"
    )
    tls_cert_file: str | None = option(
        None,
        "certificate chain (PEM) that HTTP and gRPC are served with; none serves plain text",
        group="network",
        metavar="PATH",
    )
    tls_key_file: str | None = option(None, "its private key (PEM)", group="network", metavar="PATH")
    grpc_client_ca_file: str | None = option(
        None,
        "authorities (PEM) that gRPC clients' certificates must come from; none asks for no certificate",
        group="network",
        metavar="PATH",
    )
    max_body_bytes: int = option(32 << 20, "largest request body", group="limits", minimum=1024)
    max_choices: int = option(16, "largest n", group="limits", minimum=1, maximum=128)
    queue_budget_s: float = option(60.0, "longest wait until a prefill starts", group="limits", minimum=0.1)
    deadline_s: float = option(600.0, "longest time for a whole request", group="limits", minimum=0.1)
    client_buffer_bytes: int = option(
        1 << 20, "output a client may leave unread before its request ends", group="limits", minimum=4096
    )
    client_stall_s: float = option(
        30.0, "time a client may read nothing before its request ends", group="limits", minimum=1.0
    )

    def check(self) -> None:
        """A certificate has its key."""
        super().check()
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            missing = "--tls-key-file" if self.tls_key_file is None else "--tls-cert-file"
            raise ConfigError(f"{missing} must be given too: a certificate and its key go together")
        if self.grpc_client_ca_file is not None and self.tls_cert_file is None:
            raise ConfigError("--tls-cert-file must be given with --grpc-client-ca-file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatewayConfig(PodTlsOptions, ClientOptions, SelectionOptions, ProcessOptions, LogOptions):
    """A pd_master: HTTP and gRPC towards clients, sessions towards workers."""

    host: str = option("0.0.0.0", "address to listen on", group="network")
    http_port: int = option(8000, "HTTP for clients; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX)
    grpc_port: int = option(8001, "gRPC for clients; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX)
    workers: tuple[str, ...] = option(
        (), "addresses of the workers' gRPC; each tells its role itself", group="network", metavar="HOST:PORT,..."
    )
    discovery: DiscoveryKind = option(
        "static", "where workers' addresses come from: --workers, or the pods of a namespace", group="network"
    )
    worker_selector: str | None = option(
        None, "labels of the workers' pods, as kubectl -l takes them", group="network", metavar="SELECTOR"
    )
    namespace: str | None = option(
        None, "namespace of the workers' pods; none takes this pod's own", group="network", metavar="NAME"
    )
    max_queue: int = option(4096, "requests in work at once; beyond it clients get 429", group="limits", minimum=1)
    max_attempts: int = option(32, "pairs of workers tried for one request", group="limits", minimum=1)
    worker_timeout_s: float = option(
        5.0, "a worker that is silent for this long counts as lost", group="times", minimum=2.0
    )
    drain_s: float = option(30.0, "time to finish streams after SIGTERM", group="times", minimum=0.0)

    def check(self) -> None:
        """Workers are host:port, and given in one way."""
        super().check()
        for worker in self.workers:
            split_address(worker, "--workers")
        if self.discovery == "kubernetes" and self.workers:
            raise ConfigError("--workers: not allowed together with --discovery kubernetes, which finds them")
        if self.discovery == "kubernetes" and not self.worker_selector:
            raise ConfigError("--worker-selector must be given with --discovery kubernetes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpConfig(
    ModelOptions, ScheduleOptions, TransferOptions, ClientOptions, SelectionOptions, ProcessOptions, LogOptions
):
    """`sluice up`: a pd_master and its workers, all on this machine."""

    model: str = option(
        "",
        "Hugging Face folder, folder with a GGUF file, or hub id; none takes the demo model, SmolLM2-135M-Instruct",
        group="model",
        metavar="PATH_OR_HUB_ID",
    )
    prefill: int = option(1, "prefill workers", group="processes", minimum=0, maximum=64)
    decode: int = option(1, "decode workers", group="processes", minimum=0, maximum=64)
    mixed: int = option(0, "workers that do both", group="processes", minimum=0, maximum=64)
    devices: tuple[str, ...] = option(
        (),
        "GPUs for the workers, by index or UUID: prefill, decode, then mixed workers take --tp of them each, from the "
        "first again when all are taken; none lets every worker see all",
        group="processes",
        metavar="GPU,...",
    )
    host: str = option("127.0.0.1", "address that pd_master listens on; workers stay on loopback", group="network")
    http_port: int = option(8000, "HTTP for clients; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX)
    grpc_port: int = option(8001, "gRPC for clients; 0 takes a free one", group="network", minimum=0, maximum=PORT_MAX)
    start_timeout_s: float = option(600.0, "longest time until all is ready", group="times", minimum=1.0)
    drain_s: float = option(10.0, "time to finish running work after Ctrl-C", group="times", minimum=0.0)

    def check(self) -> None:
        """Prompts and outputs both need somebody."""
        super().check()
        if self.mixed == 0 and (self.prefill == 0 or self.decode == 0):
            raise ConfigError("--prefill and --decode: each needs at least 1 unless there are --mixed workers")
        if self.devices and len(self.devices) < self.tp:
            raise ConfigError(f"--devices: {len(self.devices)} is not allowed; each worker takes --tp {self.tp}")
