"""The engine process: `python -m services.engine.main JSON | @FILE | -`.

Exits 0 after Shutdown, 2 when the configuration or the model cannot be used, 1 on any failure, with the reason in the
log (stderr).
"""

import os
import signal
import sys


def main() -> int:
    """Set what must be set before torch loads, and run; returns the exit status.

    OpenMP threads that wait sleep instead of spinning: two engines on one machine's cores otherwise spend their time
    waiting for threads that the other one keeps from running (measured on two busy cores: 1600 ms a step, 60 without).
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # They reach the whole process group: the control process drains first, and then says Shutdown.
        signal.signal(number, signal.SIG_IGN)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from services.engine.process import run_process

    return run_process(sys.argv[1:])


if __name__ == "__main__":
    # What has to be closed is closed. Python would go on to wait for the threads that compile grammars, which take
    # seconds, and after a failure for what waits for ranks that are gone.
    os._exit(main())
