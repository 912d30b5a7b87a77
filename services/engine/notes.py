"""What comes about on one rank at its own time: pages, connections, compiled grammars.

A rank never acts on such a thing by itself where others would have to do the same: it tells a note, and all ranks hear
all notes in one order, in the same turns (`agreement`). An engine of one rank hears its own at once.
"""

from typing import TypeAlias

import msgspec

from services.common.ipc import AttemptKey, Usage


class PairProven(msgspec.Struct, frozen=True, array_like=True, tag="pair_proven"):
    """This rank's connections to a peer are proven; `number` is of its ConnectPeer."""

    peer_id: str
    number: int
    lane: str
    gb_per_s: float


class PairLost(msgspec.Struct, frozen=True, array_like=True, tag="pair_lost"):
    """One of this rank's connections to a peer is over."""

    peer_id: str
    number: int
    reason: str


class PushOver(msgspec.Struct, frozen=True, array_like=True, tag="push_over"):
    """All of this rank's part of a push has landed, or some of it never will."""

    key: AttemptKey
    num_bytes: int
    failure: str | None
    """A `PushOutcome` value."""


class PagesBack(msgspec.Struct, frozen=True, array_like=True, tag="pages_back"):
    """This rank has no transfer page any more with KV of a job that has ended."""

    job_id: int


class KvCame(msgspec.Struct, frozen=True, array_like=True, tag="kv_came"):
    """The first bytes of a reservation are here, or all that this rank is to hold."""

    key: AttemptKey
    complete: bool


class KvFailed(msgspec.Struct, frozen=True, array_like=True, tag="kv_failed"):
    """KV of a reservation that this rank needs will not come."""

    key: AttemptKey
    kind: str
    """One of `ipc.TRANSFER_FAILURE_KINDS`."""
    why: str


class PeerGone(msgspec.Struct, frozen=True, array_like=True, tag="peer_gone"):
    """A connection from a prefill engine is over."""

    peer_id: str
    reason: str


class GrammarDone(msgspec.Struct, frozen=True, array_like=True, tag="grammar_done"):
    """A grammar is compiled here, or will never be."""

    number: int
    problem: str | None


class Checked(msgspec.Struct, frozen=True, array_like=True, tag="checked"):
    """This rank's answer to CheckIntegrity."""

    token: int
    problems: list[str]
    usage: Usage
    num_jobs: int


Note: TypeAlias = PairProven | PairLost | PushOver | PagesBack | KvCame | KvFailed | PeerGone | GrammarDone | Checked
