"""A gateway of several processes on the same ports: this one starts them, and starts again each that ends by itself.

    starting -> running --ends by itself--> waiting --a while, longer each time--> starting
                   '--- SIGTERM, SIGINT: all are told, and waited for ---> ended

Each process is a master of its own, with sessions of its own to all workers, and listens on the ports itself
(SO_REUSEPORT): the kernel spreads connections over them. What a process that dies takes along is its own streams. This
one holds the ports meanwhile, and imports nothing that serving needs.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from services.common.config import GatewayConfig
from services.common.log import configure_logging
from services.common.metrics import Series
from services.common.options import EXIT_USAGE, as_flags
from services.common.ports import check_free
from services.pd_master.exposition import show_page

log = logging.getLogger(__name__)

FIRST_WAIT_S, MOST_WAIT_S = 0.2, 10.0
STEADY_S = 30.0
"""A process that ran for so long is started again as quickly as the first time."""
_KILL_AFTER_S = 10.0
"""Beyond the drain time, which the processes keep themselves."""


def run(config: GatewayConfig) -> int:
    """Run a gateway until SIGTERM or SIGINT. Returns 0 after a drain, 1 when something broke. Raises ConfigError."""
    if config.processes == 1:
        check_free(config.host, config.http_port, "--http-port")
        check_free(config.host, config.grpc_port, "--grpc-port")
        from services.pd_master.main import run as run_alone  # what serves, which a parent should not load

        return run_alone(config)
    configure_logging("pd-master", level=config.log_level, format=config.log_format)
    with (
        _held(config.host, config.http_port, "--http-port") as http_port,
        _held(config.host, config.grpc_port, "--grpc-port") as grpc_port,
    ):
        shared = dataclasses.replace(config, http_port=http_port, grpc_port=grpc_port)
        with tempfile.TemporaryDirectory(prefix="sluice-gateway-") as folder:
            return asyncio.run(_Processes(shared, Path(folder)).run())


class ParentMetrics:
    """What the parent itself counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.restarts = Series(self.registry).counter(
            "gateway_process_restarts_total", "Gateway processes that ended by themselves and were started again"
        )


class _Processes:
    """All of them."""

    def __init__(self, config: GatewayConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._stop = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._metrics = ParentMetrics()

    async def run(self) -> int:
        """Until all have ended; the worst of their statuses."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._tell_to_stop)
        page = await show_page(self._folder, "parent", lambda: generate_latest(self._metrics.registry))
        statuses = await asyncio.gather(*(self._keep(number) for number in range(self._config.processes)))
        page.close()
        return max(statuses)

    def _tell_to_stop(self) -> None:
        log.info("stopping %d processes", len(self._running))
        self._stop.set()
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, number: int) -> int:
        """One of them, however often it is started; the status of its last end."""
        wait_s = FIRST_WAIT_S
        while not self._stop.is_set():
            started = time.monotonic()
            status = await self._run_one(number)
            if self._stop.is_set():
                return 0 if status in (0, -signal.SIGTERM) else 1  # by the signal: it had not come up yet
            if status == EXIT_USAGE:
                self._tell_to_stop()
                return EXIT_USAGE
            wait_s = FIRST_WAIT_S if time.monotonic() - started > STEADY_S else wait_s
            log.error("process %d ended with status %d; it is started again in %.1f s", number, status, wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)
            wait_s = min(2 * wait_s, MOST_WAIT_S)
            self._metrics.restarts.inc()
        return 0

    async def _run_one(self, number: int) -> int:
        command = (sys.executable, "-m", "services.pd_master.process", str(os.getpid()), str(number), str(self._folder))
        # A group of its own: a terminal's Ctrl-C reaches this process alone, which stops the others in order.
        process = await asyncio.create_subprocess_exec(*command, *as_flags(self._config), process_group=0)
        self._running[number] = process
        log.info("process %d runs, pid %d", number, process.pid)
        if self._stop.is_set():
            process.terminate()
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(self._stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        try:
            return await asyncio.wait_for(ended, self._config.drain_s + _KILL_AFTER_S)
        except TimeoutError:
            log.error("process %d outlasts its drain and is killed", number)  # noqa: TRY400 - no fault of ours
            process.kill()
            return await process.wait()
        finally:
            del self._running[number]


@contextlib.contextmanager
def _held(host: str, port: int, flag: str) -> Iterator[int]:
    """Keep a port on which nobody listens, without listening. Port 0 takes a free one. Raises ConfigError."""
    check_free(host, port, flag)  # refuses where anybody listens, shared or not
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
        yield held.getsockname()[1]
