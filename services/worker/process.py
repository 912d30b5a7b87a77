"""A worker's main: logs, signals, the event loop, the exit status."""

import asyncio
import logging
import signal

import uvloop

from services.common.config import WorkerConfig
from services.common.log import configure_logging
from services.common.options import EXIT_USAGE, ConfigError
from services.common.ports import check_free
from services.worker.app import Worker
from services.worker.engine_client import EngineLostError
from services.worker.parts import BuildRole

log = logging.getLogger(__name__)


def run_worker(config: WorkerConfig, build: BuildRole) -> int:
    """Run one worker until SIGTERM or SIGINT. Returns 0 after a drain, 2 when the engine refused its options, 1 when
    something broke. Raises ConfigError."""
    configure_logging(config.role, level=config.log_level, format=config.log_format)
    check_free(config.host, config.grpc_port, "--grpc-port")
    check_free(config.host, config.http_port, "--http-port")
    try:
        uvloop.run(_run(config, build))
    except ConfigError:
        raise
    except EngineLostError as error:
        log.error("the worker ends: %s", error)  # noqa: TRY400 - the engine has logged its own reason
        return EXIT_USAGE if error.is_refusal else 1
    except Exception:
        log.exception("the worker ends: something in it broke")
        return 1
    return 0


async def _run(config: WorkerConfig, build: BuildRole) -> None:
    worker = Worker(config, build)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run()
