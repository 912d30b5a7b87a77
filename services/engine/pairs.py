"""A prefill rank's connections to the ranks of decode engines, as one pair an engine to the control process.

ConnectPeer ── each rank of the peer with which this one shares KV heads ──> proven ── on all ranks ──> PeerProven
                                        └─ any of them lost, on any rank ──> all are closed, on all ──> PeerLost
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from services.common import ipc
from services.engine.notes import Note, PairLost, PairProven
from services.engine.transfer.events import PeerAddress
from services.engine.transfer.events import PeerLost as Lost
from services.engine.transfer.events import PeerProven as Proven
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.lanes import Lane
from services.engine.transfer.sender import KvSender


class Remote(NamedTuple):
    """One rank of a peer and what it gets from this one."""

    name: str
    """Of the connection: the sender's `peer_id`."""
    first_head: int
    """In this rank's pool."""
    num_heads: int


@dataclass(slots=True)
class _Pair:
    """One ConnectPeer. What is proven and live here is this rank's own; the rest is the same on all."""

    command: ipc.ConnectPeer
    number: int
    remotes: tuple[Remote, ...]
    live: set[str]
    """Connections that have not been reported lost here."""
    proven: dict[str, Proven] = field(default_factory=dict)
    num_ranks_proven: int = 0
    lane: Lane = Lane.CUDA_IPC
    gb_per_s: float = 0.0


class Pairs:
    """Owned by `Pushes`."""

    def __init__(
        self,
        sender: KvSender,
        num_kv_heads: int,
        rank: int,
        num_ranks: int,
        tell: Callable[[Note], None],
        say: Callable[[ipc.Event], None],
    ) -> None:
        """`tell` notes to all ranks, `say` events to the control process."""
        self._sender = sender
        self._num_kv_heads = num_kv_heads
        self._heads = HeadRange.of_rank(num_kv_heads, rank, num_ranks)
        self._num_ranks = num_ranks
        self._tell = tell
        self._say = say
        self._number = 0
        self._pairs: dict[str, _Pair] = {}
        self._leaving: Counter[str] = Counter()
        """Connections that this rank closes: so many losses of that name are none of the pair's there is now."""

    def remotes(self, peer_id: str) -> tuple[Remote, ...]:
        """Where this rank's share of a push to a peer goes; empty when it is not connected."""
        pair = self._pairs.get(peer_id)
        return () if pair is None else pair.remotes

    def connect(self, command: ipc.ConnectPeer) -> None:
        """Reach and prove a decode engine: PeerProven or PeerLost is said. One that is connected is left alone."""
        old = self._pairs.get(command.peer_id)
        if old is not None:
            if old.command == command:
                return
            self._leave(old)
        self._number += 1
        there = [HeadRange.of_rank(self._num_kv_heads, rank, len(command.ports)) for rank in range(len(command.ports))]
        remotes = []
        for rank, (port, heads) in enumerate(zip(command.ports, there, strict=True)):
            common = self._heads.meet(heads)
            if common.num_heads:
                name = f"{command.peer_id}/{rank}"
                self._sender.connect(PeerAddress(name, command.host, port, command.incarnation, command.group, heads))
                remotes.append(Remote(name, common.first - self._heads.first, common.num_heads))
        names = {remote.name for remote in remotes}
        self._pairs[command.peer_id] = _Pair(command, self._number, tuple(remotes), names)

    def drop(self, peer_id: str) -> None:
        """Close a pair; PeerLost is said if there was one."""
        pair = self._pairs.pop(peer_id, None)
        if pair is not None:
            self._leave(pair)
            self._say(ipc.PeerLost(peer_id, "closed: closed here"))

    def on_proven(self, event: Proven) -> None:
        """The sender proved a connection."""
        pair = self._pair_of(event.peer_id)
        if pair is None:
            return
        pair.proven[event.peer_id] = event
        if len(pair.proven) == len(pair.remotes):
            slowest = min(pair.proven.values(), key=lambda each: list(Lane).index(Lane(each.lane)))
            rate = sum(each.gb_per_s for each in pair.proven.values())
            self._tell(PairProven(pair.command.peer_id, pair.number, slowest.lane, rate))

    def on_lost(self, event: Lost) -> None:
        """The sender lost a connection."""
        pair = self._pair_of(event.peer_id)
        if self._leaving[event.peer_id]:
            self._leaving[event.peer_id] -= 1
        elif pair is not None:
            pair.live.discard(event.peer_id)
            reason = f"{event.reason.value}: {event.detail}"
            self._tell(PairLost(pair.command.peer_id, pair.number, reason))

    def hear(self, note: PairProven | PairLost) -> None:
        """What a rank told of its part of a pair; of an earlier pair with the same peer it means nothing."""
        pair = self._pairs.get(note.peer_id)
        if pair is None or pair.number != note.number:
            return
        if isinstance(note, PairLost):
            del self._pairs[note.peer_id]
            self._leave(pair)
            self._say(ipc.PeerLost(note.peer_id, note.reason))
            return
        pair.num_ranks_proven += 1
        lane = Lane(note.lane)
        pair.lane = lane if lane.is_slower_than(pair.lane) else pair.lane
        pair.gb_per_s += note.gb_per_s
        if pair.num_ranks_proven == self._num_ranks:
            self._say(ipc.PeerProven(note.peer_id, pair.lane.value, pair.gb_per_s))

    def _pair_of(self, name: str) -> _Pair | None:
        """The pair that a connection is of, unless it is one that is being closed."""
        pair = self._pairs.get(name.rpartition("/")[0])
        return None if self._leaving[name] or pair is None or name not in pair.live else pair

    def _leave(self, pair: _Pair) -> None:
        for name in pair.live:
            self._leaving[name] += 1
            self._sender.disconnect(name)
        pair.live.clear()
