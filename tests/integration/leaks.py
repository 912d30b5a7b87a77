"""What must be true of every worker once nothing is asked of it: no slot, page, job or reservation is left."""

import re
import time
from collections.abc import Sequence

from tests.integration.cluster import Cluster, Process

SOON_S = 60.0
"""What is left then was forgotten, on however slow a machine."""
HELD = (
    'sluice_engine_slots{state="held"}',
    'sluice_engine_slots{state="reserved"}',
    'sluice_engine_transfer_pages{state="in_use"}',
    'sluice_engine_transfer_pages{state="quarantined"}',
    'sluice_engine_host_pages{state="in_use"}',
    "sluice_router_running_requests",
    "sluice_router_waiting_requests",
)
"""Gauges of a worker that count something held for somebody."""


def left_behind(process: Process) -> dict[str, float]:
    """The gauges of HELD that are not zero; every one of them must exist."""
    text = process.metrics()
    held = {}
    for name in HELD:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{process.name} has no {name}"
        held[name] = float(found.group(1))
    return {name: value for name, value in held.items() if value != 0.0}


def wait_nothing_left(cluster: Cluster, within_s: float = SOON_S) -> None:
    """Until every running worker holds nothing; raises AssertionError with what is left."""
    workers_hold_nothing(
        [one for one in cluster.processes.values() if one.running and one.name != "pd-master"], within_s
    )


def workers_hold_nothing(running: Sequence[Process], within_s: float = SOON_S) -> None:
    """The same for these workers."""
    deadline = time.monotonic() + within_s
    while True:
        left = {process.name: held for process in running if (held := left_behind(process))}
        if not left:
            return
        assert time.monotonic() < deadline, f"left behind after {within_s} s: {left}"
        time.sleep(0.05)
