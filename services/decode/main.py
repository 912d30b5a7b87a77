"""`sluice decode` and `sluice mixed`: the control process of a worker that decodes."""

from services.common.config import WorkerConfig
from services.decode import service
from services.decode.mixed import build as build_mixed
from services.worker.process import run_worker


def run(config: WorkerConfig) -> int:
    """Run until SIGTERM. Returns the exit status: 0 after a drain, 1 when something broke. Raises ConfigError."""
    return run_worker(config, build_mixed if config.role == "mixed" else service.build)
