"""What the transfer tells the engine's loop, and the names both sides use."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from services.common.ipc import AttemptKey
from services.engine.transfer.heads import ONE_HEAD, HeadRange
from services.engine.transfer.pages import Page


class TransferError(Exception):
    """The transfer itself is broken or was misused; never raised for a peer's failure, which is a `PeerLost`."""


class LostReason(Enum):
    """Why a peer was lost; the values are what metrics and logs show."""

    CONNECT = "connect_failed"
    """No answer to the handshake in time, or the connection was refused by the network."""
    REFUSED = "refused"
    """The peer said no, or we did: protocol, group, incarnation or page size differ, or no KV head is common. Trying
    again cannot help."""
    LANE = "lane_too_slow"
    """`require_lane` names a faster lane than UCX found (R16)."""
    PROOF = "proof_failed"
    """The test page did not arrive as it was sent."""
    ENDPOINT = "endpoint_failed"
    """UCX reported the peer gone: its process ended or the network broke."""
    SILENT = "silent"
    """Nothing was heard for `silence_s`: the process hangs or the network drops packets."""
    DEADLINE = "deadline"
    """A payload took longer than `push_timeout_s`."""
    PROTOCOL = "protocol_violation"
    """The peer sent what the protocol does not allow."""
    REPLACED = "replaced"
    """The same peer connected again."""
    CLOSED = "closed"
    """Either side closed the connection on purpose."""


class PushOutcome(Enum):
    """How a push ended. Exactly one outcome is reported for every push."""

    LANDED = "landed"
    """The bytes are in a page of the peer and verified; the attempt joins through the control plane."""
    DISCARDED = "discarded"
    """The peer no longer knows, or never knew, the attempt."""
    CORRUPT = "corrupt"
    """The checksum at the peer differs."""
    DROPPED = "dropped"
    """`drop` came before it was sent."""
    LOST = "lost"
    """The peer was lost, or was not proven, before it answered."""


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """One rank of a decode worker, as a prefill worker learned of it."""

    peer_id: str
    """The sender's own name for it: what its pushes and events carry."""
    host: str
    port: int
    incarnation: str
    group: str
    heads: HeadRange = ONE_HEAD
    """The KV heads that the rank holds."""


@dataclass(frozen=True, slots=True)
class PeerProven:
    """The test page crossed; both sides report it."""

    peer_id: str
    incarnation: str
    lane: str
    """One of `lanes.Lane`, e.g. "tcp" or "cuda_ipc"."""
    gb_per_s: float


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection, or the attempt at one, is over; `connect` may be called again. Ends every `connect`. Pages of
    payloads still in flight come back once UCX has let go of them."""

    peer_id: str
    incarnation: str
    reason: LostReason
    detail: str


class Pushed(NamedTuple):
    """The end of one push. Its page is back in the pool, or will be once the connection's end is through (LOST)."""

    peer_id: str
    key: AttemptKey
    token_start: int
    num_tokens: int
    num_bytes: int
    outcome: PushOutcome


class Received(NamedTuple):
    """KV of tokens [token_start, token_start + num_tokens) lies in `page`, which whoever takes this event releases."""

    peer_id: str
    key: AttemptKey
    token_start: int
    num_tokens: int
    num_bytes: int
    heads: HeadRange
    """The model's heads that the page holds: those that both ranks have."""
    page: Page


@dataclass(frozen=True, slots=True)
class Damaged:
    """A payload of an expected attempt failed its checksum; its bytes were thrown away."""

    peer_id: str
    key: AttemptKey
    token_start: int
    num_tokens: int


SenderEvent: TypeAlias = PeerProven | PeerLost | Pushed
ReceiverEvent: TypeAlias = PeerProven | PeerLost | Received | Damaged
