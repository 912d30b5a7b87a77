"""Attempts that must not start any more: the memory of what was ended, for one lease (R5).

A message that names an attempt may be late: a Reserve after its Cancel, a Submit after its Abort. One lease after the
end nobody can still send it, because whoever would has been without its session for longer than the protocol allows.
"""

from services.common.ipc import AttemptKey


class Tombstones:
    """request_id -> highest attempt ended. Used by one core; grows by one per ended request, shrinks in `expire`."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._graves: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._graves)

    def bury(self, key: AttemptKey, now: float) -> None:
        """Remember for one lease from now that this attempt and all below it have ended."""
        attempt, _ = self._graves.pop(key.request_id, (0, 0.0))
        # Popped first, so that the dict stays in order of expiry.
        self._graves[key.request_id] = (max(attempt, key.attempt), now + self._lease_s)

    def covers(self, key: AttemptKey) -> bool:
        """Whether this attempt, or one above it, has ended."""
        return self._graves.get(key.request_id, (0, 0.0))[0] >= key.attempt

    def expire(self, now: float) -> None:
        """Forget what is older than a lease."""
        while self._graves:
            request_id = next(iter(self._graves))
            if self._graves[request_id][1] > now:
                break
            del self._graves[request_id]
