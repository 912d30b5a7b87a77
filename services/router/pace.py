"""How long a unit of work takes, by the last few steps.

One of them may be no evidence: the first of a new engine, which finds nothing warm, or one in which the machine stood
still. So the slowest counts with a bounded time, and less than a few steps say nothing: by a single first step of five
seconds, a new worker gave up what had waited half its time, and would have been done seconds later.
"""

from collections import deque
from dataclasses import dataclass, field

_STEPS = 16
_LEAST_STEPS = 4
_LONGEST = 4.0
"""What the slowest step counts at most, as a multiple of the others' pace. Steps with a chunk of a prompt in them take
about this many times as long as others, and are no exception."""


@dataclass(slots=True)
class Pace:
    """Of one kind of work: decode steps, or prompt tokens."""

    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    """Seconds and units."""

    def stepped(self, seconds: float, units: int) -> None:
        """A step took so long for so many units, at least one."""
        self._steps.append((seconds, units))

    @property
    def unit_s(self) -> float:
        """Seconds a unit; 0 while too few steps are known."""
        if len(self._steps) < _LEAST_STEPS:
            return 0.0
        slowest_s, slowest_units = max(self._steps, key=lambda step: step[0] / step[1])
        units = sum(units for _, units in self._steps)
        others_s = sum(seconds for seconds, _ in self._steps) - slowest_s
        others = units - slowest_units
        return (others_s + min(slowest_s, _LONGEST * slowest_units * others_s / others)) / units
