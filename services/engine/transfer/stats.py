"""Figures of the transfer for metrics. Written on the transfer thread, copied out by any other."""

from collections import Counter
from dataclasses import dataclass

from services.engine.transfer.lanes import Lane
from services.engine.transfer.pages import PageCounts, PagePool


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """One connected peer."""

    lane: str
    proven_gb_per_s: float
    num_bytes: int
    num_messages: int
    busy_s: float
    """Time with at least one payload in flight: num_bytes / busy_s is the pair's real rate."""
    in_flight: int


@dataclass(frozen=True, slots=True)
class TransferStats:
    """A copy of all figures. Totals count from the start of the process, peers that have gone included."""

    pages: PageCounts
    num_bytes: int
    num_messages: int
    busy_s: float
    outcomes: dict[str, int]
    """Payloads by outcome; the keys are the values of `PushOutcome`, on both sides."""
    lost: dict[str, int]
    """Lost peers by `LostReason` value."""
    peers: dict[str, PeerFigures]


class PeerMeter:
    """Counts one peer's payloads."""

    def __init__(self) -> None:
        self.lane = Lane.UNKNOWN
        self.proven_gb_per_s = 0.0
        self.num_bytes = 0
        self.num_messages = 0
        self.in_flight = 0
        self.busy_s = 0.0
        self._busy_since = 0.0

    def begin(self, now: float) -> None:
        """A payload is in flight from now on."""
        if self.in_flight == 0:
            self._busy_since = now
        self.in_flight += 1

    def end(self, now: float, num_bytes: int) -> None:
        """It is not any more; 0 bytes if it failed."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self.busy_s += now - self._busy_since
        if num_bytes:
            self.num_bytes += num_bytes
            self.num_messages += 1

    def figures(self) -> PeerFigures:
        """A copy."""
        return PeerFigures(
            self.lane.value, self.proven_gb_per_s, self.num_bytes, self.num_messages, self.busy_s, self.in_flight
        )


class Meters:
    """All counters of one transfer."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._peers: dict[str, PeerMeter] = {}
        self._gone = PeerMeter()

    def peer(self, peer_id: str) -> PeerMeter:
        """A fresh meter for a peer that connects; retire the old one first."""
        meter = self._peers[peer_id] = PeerMeter()
        return meter

    def retire(self, peer_id: str, meter: PeerMeter) -> None:
        """Keep only the totals of a connection that is over; a newer one of the same peer is left alone."""
        if self._peers.get(peer_id) is meter:
            del self._peers[peer_id]
        self._gone.num_bytes += meter.num_bytes
        self._gone.num_messages += meter.num_messages
        self._gone.busy_s += meter.busy_s

    def snapshot(self, pool: PagePool) -> TransferStats:
        """A copy of everything; may be a payload behind."""
        peers = {peer_id: meter.figures() for peer_id, meter in list(self._peers.items())}
        return TransferStats(
            pool.counts(),
            self._gone.num_bytes + sum(figures.num_bytes for figures in peers.values()),
            self._gone.num_messages + sum(figures.num_messages for figures in peers.values()),
            self._gone.busy_s + sum(figures.busy_s for figures in peers.values()),
            dict(self.outcomes),
            dict(self.lost),
            peers,
        )
