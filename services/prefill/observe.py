"""Times reservations as the prefill worker sees them: from Reserve to its answer, from Handover to Joined."""

import time

from services.common.ipc import AttemptKey
from services.common.metrics import PrefillMetrics
from services.common.peer_messages import (
    Cancel,
    DecodeMessage,
    Denied,
    Granted,
    Handover,
    HandoverFailed,
    JoinConfirmed,
    PrefillMessage,
    Reserve,
    Revoked,
)

MAX_TIMES = 10_000


class ReservationTimes:
    """Told of every message to and from decode workers. Holds one time for each unanswered message."""

    def __init__(self, metrics: PrefillMetrics) -> None:
        self._metrics = metrics
        self._asked_s: dict[AttemptKey, float] = {}
        self._handed_over_s: dict[AttemptKey, float] = {}

    def said(self, message: PrefillMessage) -> None:
        """To a decode worker."""
        match message:
            case Reserve(key=key):
                self._asked_s.setdefault(key, time.monotonic())
                if len(self._asked_s) > MAX_TIMES:  # lost with a session and never cancelled
                    del self._asked_s[next(iter(self._asked_s))]
            case Handover(key=key):
                self._handed_over_s.setdefault(key, time.monotonic())
            case Cancel(key=key):
                self._forget(key)

    def heard(self, message: DecodeMessage) -> None:
        """From a decode worker."""
        match message:
            case Granted(key=key) if key in self._asked_s:
                self._metrics.placement.observe(time.monotonic() - self._asked_s.pop(key))
                self._metrics.reservations.labels("granted").inc()
            case JoinConfirmed(key=key) if key in self._handed_over_s:
                self._metrics.hand_over.observe(time.monotonic() - self._handed_over_s.pop(key))
            case Denied(key=key, reason=reason):
                self._end(key, reason.value)
            case HandoverFailed(key=key, reason=reason):
                self._end(key, f"failed_{reason.value}")
            case Revoked(key=key):
                self._end(key, "revoked")

    def _end(self, key: AttemptKey, outcome: str) -> None:
        self._metrics.reservations.labels(outcome).inc()
        self._forget(key)

    def _forget(self, key: AttemptKey) -> None:
        self._asked_s.pop(key, None)
        self._handed_over_s.pop(key, None)
