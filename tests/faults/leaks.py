"""What must be true of every worker once nothing is asked of it: no slot, page, job or reservation is left."""

import re
import time

from tests.integration.cluster import Cluster, Process

LEFT_BEHIND = re.compile(
    r"^(sluice_\w*(?:held_slots|reserved_slots|jobs|reservations|quarantined\w*|pages_in_use))(?:\{[^}]*\})? (\S+)$",
    re.MULTILINE,
)


def left_behind(process: Process) -> dict[str, float]:
    """The gauges of a worker that count something held, where they are not zero."""
    found = LEFT_BEHIND.findall(process.metrics())
    assert found, f"{process.name} shows no gauge of what it holds:\n{process.metrics()[:2000]}"
    return {name: float(value) for name, value in found if float(value) != 0.0}


def wait_nothing_left(cluster: Cluster, within_s: float) -> None:
    """Until every running worker holds nothing; raises AssertionError with what is left."""
    deadline = time.monotonic() + within_s
    running = [
        p
        for p in cluster.processes.values()
        if p.popen is not None and p.popen.poll() is None and p.name != "pd-master"
    ]
    while True:
        left = {process.name: held for process in running if (held := left_behind(process))}
        if not left:
            return
        assert time.monotonic() < deadline, f"left behind after {within_s} s: {left}"
        time.sleep(0.05)
