"""Settings of one engine rank's KV transfer, checked once when it is made."""

from dataclasses import dataclass, field

from services.engine.transfer.heads import ONE_HEAD, HeadRange
from services.engine.transfer.lanes import Lane

MAX_NAME_BYTES = 64


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """What one `KvSender` or `KvReceiver` is told at start.

    Raises ValueError naming the field when a value cannot work.
    """

    peer_id: str
    """This process, as its peers name it in logs and metrics."""
    incarnation: str
    """Random name of this start of the process."""
    group: str
    """Names (model fingerprint, layout), at any length: only equal groups talk (R13)."""
    rank: int = 0
    heads: HeadRange = ONE_HEAD
    """The KV heads of this rank: only ranks that share some connect."""
    depth: int = 4
    """Sender: payloads that move to one peer at once."""
    credit: int = 6
    """Receiver: payloads one peer may have announced and not yet been answered for; more than `depth`, so that answers
    on their way hold nothing up."""
    listen_port: int = 0
    """Receiver: 0 lets the system choose; `KvReceiver.port` tells."""
    checksum: bool = False
    """Sender: CRC-32 of every payload, checked by the receiver. Costs about a millisecond a MB on each side."""
    require_lane: Lane | None = None
    """Refuse peers that UCX reaches only by a slower lane (R16)."""
    connect_timeout_s: float = 5.0
    """From `connect` to proven, and from accept to hello."""
    push_timeout_s: float = 30.0
    """From announce to answer; beyond it the endpoint is closed (R1)."""
    silence_s: float = 5.0
    """A peer that says nothing for so long is lost; each side speaks at least once in `heartbeat_s`."""
    heartbeat_s: float = 1.0
    early_grace_s: float = 1.0
    """Receiver: how long a payload of an attempt never heard of may wait for `expect` before it is discarded."""
    tombstone_s: float = 60.0
    """Receiver: how long a forgotten attempt is known to be gone; one lease."""
    spin_s: float = 50e-6
    """How long the thread polls after anything happened before it sleeps: buys latency with CPU time and GIL."""
    naps_s: float | None = None
    """How long the thread looks every 20 us after anything happened, which leaves the interpreter to the loop in
    between; None: 1 ms for pages on a device, never for pages on the host."""
    may_map: bool = True
    """Whether pages that two processes of a host can share are mapped by the receiver, and read without UCX."""
    ucx_options: dict[str, str] = field(default_factory=dict)
    """UCX settings without the UCX_ prefix; an environment variable of the same name wins."""

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.group:
            raise ValueError("group must not be empty")
        for name in ("peer_id", "incarnation"):
            value: str = getattr(self, name)
            if not 0 < len(value.encode()) <= MAX_NAME_BYTES:
                raise ValueError(f"{name} must have 1 to {MAX_NAME_BYTES} bytes, got {value!r}")
        if self.heads.first < 0 or self.heads.num_heads < 1:
            raise ValueError(f"heads must begin at 0 or later and be 1 or more, got {self.heads}")
        for name in ("depth", "credit"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.listen_port < 1 << 16:
            raise ValueError(f"listen_port must be 0 to 65535, got {self.listen_port}")
        self._check_times()

    def _check_times(self) -> None:
        for name in ("connect_timeout_s", "push_timeout_s", "silence_s", "heartbeat_s", "tombstone_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.silence_s <= 2 * self.heartbeat_s:
            raise ValueError(f"silence_s ({self.silence_s}) must be above twice heartbeat_s ({self.heartbeat_s})")
