"""A pd_master's main: logs, signals, the event loop, the wiring, the exit status."""

import asyncio
import gc
import logging
import signal
import socket
from pathlib import Path
from typing import NamedTuple

import uvloop
from prometheus_client import CollectorRegistry

from services.common.config import GatewayConfig
from services.common.identity import new_incarnation
from services.common.log import configure_logging
from services.common.messages import MasterRef
from services.common.options import ConfigError
from services.common.pod_tls import dial_of, read_pod_tls
from services.pd_master.discovery import Discovery, StaticDiscovery
from services.pd_master.dispatcher import PdDispatcher
from services.pd_master.exposition import Exposition, merge_pages, read_pages, show_page
from services.pd_master.fleet import Fleet
from services.pd_master.fleet_metrics import FleetCollector
from services.pd_master.front import Front
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.pending_load import PendingLoad
from services.pd_master.registry import Registry
from services.pd_master.selector import Policy

log = logging.getLogger(__name__)


class Share(NamedTuple):
    """What one of several processes has of its own."""

    number: int
    folder: Path
    """Where all show their metrics."""


def run(config: GatewayConfig, share: Share | None = None) -> int:
    """Run one process until SIGTERM or SIGINT. Returns 0 after a drain, 1 when something broke. Raises ConfigError.

    `share`: None where it is the only one.
    """
    configure_logging("pd-master", level=config.log_level, format=config.log_format)
    try:
        uvloop.run(_run(config, share))
    except ConfigError:
        raise
    except Exception:
        log.exception("the gateway ends: something in it broke")
        return 1
    return 0


async def _run(config: GatewayConfig, share: Share | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    name = f"{socket.gethostname()}:{config.http_port}" + (f"/{share.number}" if share else "")
    master = MasterRef(name, new_incarnation())
    pending, metrics = PendingLoad(), GatewayMetrics()
    discovery, dial = _discovery(config, metrics.registry), dial_of(read_pod_tls(config))
    registry = Registry(master, discovery, pending, config.worker_timeout_s, dial=dial)
    dispatcher = PdDispatcher(
        registry,
        pending,
        client_buffer_bytes=config.client_buffer_bytes,
        client_stall_s=config.client_stall_s,
        max_attempts=config.max_attempts,
        policy=Policy(local_tokens=config.local_prefill_tokens),
    )
    FleetCollector(metrics.registry, registry.snapshot, registry.prefixes)
    fleet = Fleet(master, registry, dispatcher)
    front = Front(config, fleet, dispatcher, metrics, await _exposition(metrics, share))
    fleet.stages = front.stages
    registry.models.on_served = front.prepare
    gc.freeze()  # what there is now stays: a collection need not look at it
    async with asyncio.TaskGroup() as tasks:
        links = tasks.create_task(registry.run(fleet), name="registry")
        await front.serve(stop)
        links.cancel()


async def _exposition(metrics: GatewayMetrics, share: Share | None) -> Exposition | None:
    if share is None:
        return None
    shown = await show_page(share.folder, str(share.number), metrics.render)

    async def page_of_all() -> bytes:
        assert shown.is_serving(), "our own page is one of them"
        return merge_pages(await read_pages(share.folder)).encode()

    return page_of_all


def _discovery(config: GatewayConfig, registry: CollectorRegistry) -> Discovery:
    if config.discovery == "static":
        if not config.workers:
            log.warning("--workers names none, and --discovery is static: every request will get a 503")
        return StaticDiscovery(config.workers)
    # The Kubernetes client takes a second and 70 MB, which only a gateway in a cluster should pay.
    from services.pd_master.kubernetes_discovery import discovery_of_pods

    assert config.worker_selector is not None, "checked by the options"
    return discovery_of_pods(config.worker_selector, config.namespace, registry)
