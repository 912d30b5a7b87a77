"""How long a worker goes on believing in what it no longer hears of. All in seconds, on the worker's own clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """The worker's options, once (`WorkerConfig.master_timeout_s`, `reservation_lease_s`)."""

    master_silence_s: float = 5.0
    """A master without a session for so long has its attempts ended (R7)."""
    reservation_lease_s: float = 10.0
    """A reservation that its prefill worker has not named for so long is given back (R8)."""

    @property
    def tombstone_s(self) -> float:
        """Longer than anyone believes in an attempt without a session: silence, and rounds of reconciling after it."""
        return 3 * self.master_silence_s
