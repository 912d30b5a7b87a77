"""`sluice prefill`: one prefill worker's control process."""

from services.common.config import WorkerConfig
from services.prefill.service import build
from services.worker.process import run_worker


def run(config: WorkerConfig) -> int:
    """Run until SIGTERM. Returns the exit status: 0 after a drain, 1 when something broke. Raises ConfigError."""
    return run_worker(config, build)
