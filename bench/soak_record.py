"""What a soak has seen, and what it must not have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.soak_memory import Grown

MOST_SLOWER = 5.0
LEAST_USE = 0.95
MOST_HOST_GROWTH_MIB = 64.0
"""Of a soak that lasts: within seconds a process is still on its way to its working set."""
MOST_UNREACHABLE = 1000
"""Objects in reference cycles: what is imported or compiled on its first use leaves some."""


@dataclass(slots=True)
class Record:
    """One entry a counted step, and what was found wrong."""

    times: list[float] = field(default_factory=list)
    use: list[float] = field(default_factory=list)
    """Share of the pool that somebody holds; cached prefixes do not count."""
    what: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    host: Grown = field(default_factory=Grown)
    """From the end of the warm-up to after the last job."""
    device_growth_mib: float = 0.0
    """From before the first step to after the last job."""


def full_from(use: list[float]) -> list[float]:
    """What follows the first moment at which the pool was full."""
    first = next((i for i, share in enumerate(use) if share >= LEAST_USE), len(use))
    return use[first:]


def violations(record: Record) -> list[str]:
    """What the soak must not show; empty when all is well."""
    found = list(record.problems)
    if record.device_growth_mib > 0:
        found.append(f"the device's memory grew by {record.device_growth_mib:.3f} MiB")
    host, left = record.host, record.host.left
    if host.peak_mib > MOST_HOST_GROWTH_MIB:
        found.append(f"the host's memory grew by {host.peak_mib:.0f} MiB; {MOST_HOST_GROWTH_MIB:.0f} may be")
    if left.num_unreachable > MOST_UNREACHABLE:
        found.append(f"{left.num_unreachable} objects were left in cycles, {left.unreachable}, made by {left.made_by}")
    full = full_from(record.use)
    if not full or np.mean(full) < LEAST_USE:
        found.append(f"the pool was {np.mean(full or [0]):.1%} full; {LEAST_USE:.0%} is asked for")
    found += [f"slow: {1e3 * record.times[i]:.1f} ms, {record.what[i]}" for i in slow_steps(record.times)]
    return found


def slow_steps(times: list[float]) -> list[int]:
    """Steps of more than 5 times the median, but the first."""
    limit = MOST_SLOWER * float(np.median(times))
    return [i for i, took in enumerate(times) if i and took > limit]
