"""The engine's end of the KV transfer, made from its configuration: pages, and a sender or a receiver by role."""

import os
from dataclasses import dataclass

import msgspec

from services.common.identity import group_name
from services.engine.config import ConfigError, EngineConfig
from services.engine.load import LoadedModel
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.device_memory import DeviceMemory
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.lanes import Lane, allows_cuda_ipc
from services.engine.transfer.page_memory import HostMemory
from services.engine.transfer.pages import PagePool
from services.engine.transfer.receiver import KvReceiver
from services.engine.transfer.sender import KvSender
from services.engine.transfer.wire import TRANSFER_PROTOCOL

_LANES = {"tcp": Lane.TCP, "sm": Lane.SHARED_MEMORY, "rdma": Lane.RDMA, "cuda_ipc": Lane.CUDA_IPC}


class TransferOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of `EngineConfig.transfer`; what is not here keeps the transfer's own default."""

    listen_port: int = 0
    """Of rank 0; each rank listens on the next one. 0: the system chooses."""
    page_bytes: int = 4 << 20
    num_pages: int = 8
    depth: int = 4
    """Pages that move to one peer at once."""
    push_timeout_s: float = 30.0
    checksum: bool = False
    require_lane: str | None = None
    ucx_tls: str | None = None
    ucx_net_devices: str | None = None


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """What a rank sends from or receives with; one of the two is None."""

    pages: PagePool
    num_kv_heads: int
    """Of the model."""
    heads: HeadRange
    """Of this rank."""
    sender: KvSender | None = None
    receiver: KvReceiver | None = None
    ports: tuple[int, ...] = ()
    """Where KV may be sent to, by rank."""

    @property
    def wake_fd(self) -> int:
        """Readable when the transfer has something to say."""
        end = self.sender or self.receiver
        assert end is not None
        return end.wake_fd

    def close(self) -> None:
        """End all connections."""
        for end in (self.sender, self.receiver):
            if end is not None:
                end.close()


def pages_a_peer(num_pages: int) -> int:
    """Pages that the payloads of one peer may hold, on either side: one that hangs does not take them all."""
    return max(1, num_pages * 3 // 4)


def open_transfer(config: EngineConfig, model: LoadedModel) -> TransferEnd | None:
    """Start the transfer of a prefill or decode engine; None for a mixed one. Raises ConfigError."""
    if config.role == "mixed":
        return None
    group = group_name(model.fingerprint, model.layout, TRANSFER_PROTOCOL)
    try:
        options = msgspec.convert(config.transfer, TransferOptions)
        settings = _settings(config, options, group, model.config.num_kv_heads)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"transfer: {error}") from error
    if options.page_bytes < model.kv_bytes_per_token:
        raise ConfigError(
            f"--transfer-page-bytes: {options.page_bytes} is not allowed; the KV of one token takes "
            f"{model.kv_bytes_per_token}"
        )
    device = model.runner.backend.device
    memory = DeviceMemory(str(device)) if device.type == "cuda" else HostMemory()
    pages = PagePool(memory, options.num_pages, options.page_bytes)
    num_kv_heads = model.config.num_kv_heads
    if config.role == "prefill":
        return TransferEnd(pages, num_kv_heads, settings.heads, sender=KvSender(settings, pages))
    receiver = KvReceiver(settings, pages)
    ports = tuple(model.ranks.each(receiver.port))
    return TransferEnd(pages, num_kv_heads, settings.heads, receiver=receiver, ports=ports)


def _settings(config: EngineConfig, options: TransferOptions, group: str, num_kv_heads: int) -> TransferConfig:
    if options.require_lane is not None and options.require_lane not in _LANES:
        raise ConfigError(f"transfer.require_lane is {options.require_lane!r}; allowed: {', '.join(_LANES)}")
    tls = os.environ.get("UCX_TLS", options.ucx_tls) or "all"
    ucx = {"TLS": options.ucx_tls, "NET_DEVICES": options.ucx_net_devices}
    return TransferConfig(
        peer_id=config.worker_id,
        incarnation=config.incarnation,
        group=group,
        rank=config.rank,
        heads=HeadRange.of_rank(num_kv_heads, config.rank, config.num_ranks),
        depth=options.depth,
        credit=pages_a_peer(options.num_pages),
        listen_port=options.listen_port and options.listen_port + config.rank,
        checksum=options.checksum,
        require_lane=None if options.require_lane is None else _LANES[options.require_lane],
        push_timeout_s=options.push_timeout_s,
        may_map=allows_cuda_ipc(tls),
        ucx_options={name: value for name, value in ucx.items() if value is not None},
    )
