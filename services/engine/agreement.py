"""How ranks stay alike: rank 0 decides what a turn begins with, and every rank takes the same turns.

    rank 0    commands of the control process, notes of all ranks ──> Turn ──> itself and the others, in order
    others    own notes ──> rank 0;  Turn ──> taken as it comes

From equal turns every rank makes equal steps, rows, slots and decisions, because whatever else could decide something
(bytes that came, a grammar that is compiled) is a note, which all hear in the same turn. Frames are msgspec over ZMQ
sockets in the folder that the ranks share; each waits inside ZMQ for a rank that has not come up yet.
"""

from pathlib import Path

import msgspec
import zmq

from services.common.ipc import Command
from services.engine.notes import Note

_HIGH_WATER_FRAMES = 10_000
_LINGER_MS = 1000


class RankLostError(Exception):
    """Another rank takes no turns any more, or drew other tokens than this one: the engine ends, all ranks of it."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """What one turn begins with, the same on every rank."""

    commands: list[Command]
    notes: list[tuple[int, Note]]
    """Each with the rank that told it."""
    drawn: int = 0
    """Rank 0's checksum over all tokens drawn so far."""


class Agreement:
    """One rank's end; owned by the loop. With one rank nothing is sent."""

    def __init__(self, rank: int = 0, count: int = 1, folder: str = "") -> None:
        self.rank, self.count = rank, count
        self._told: list[Note] = []
        self._heard: list[tuple[int, Note]] = []
        self._turns: list[zmq.Socket[bytes]] = []
        self._notes: zmq.Socket[bytes] | None = None
        if count > 1:
            self._open(Path(folder))

    def _open(self, folder: Path) -> None:
        notes = f"ipc://{folder / 'notes.sock'}"
        turns = [f"ipc://{folder / f'turns-{rank}.sock'}" for rank in range(1, self.count)]
        if self.rank == 0:
            self._notes = _socket(zmq.PULL)
            self._notes.bind(notes)
            self._turns = [_connected(each) for each in turns]
        else:
            self._notes = _connected(notes)
            self._turns = [_socket(zmq.PULL)]
            self._turns[0].bind(turns[self.rank - 1])

    @property
    def socket(self) -> "zmq.Socket[bytes] | None":
        """Readable while this rank has something to take: rank 0 notes, others a turn. None with one rank."""
        if self.count == 1:
            return None
        return self._notes if self.rank == 0 else self._turns[0]

    def tell(self, note: Note) -> None:
        """Have all ranks hear it, this one included."""
        self._told.append(note)

    def alone(self) -> list[Note]:
        """What has been told and need not wait for a turn, because there is nobody else."""
        if self.count > 1:
            return []
        told, self._told = self._told, []
        return told

    @property
    def has_notes(self) -> bool:
        """Rank 0: whether a turn would bring notes."""
        self._collect()
        return bool(self._heard or self._told)

    def begin(self, commands: list[Command], drawn: int) -> Turn:
        """Rank 0: begin a turn, here and on the others. Raises RankLostError when one of them takes none."""
        self._collect()
        notes = [*self._heard, *((0, note) for note in self._told)]
        self._heard, self._told = [], []
        turn = Turn(commands, notes, drawn)
        if self._turns:
            frame = msgspec.msgpack.encode(turn)
            for rank, socket in enumerate(self._turns, 1):
                _send(socket, frame, f"rank {rank} takes no turns")
        return turn

    def next(self) -> Turn | None:
        """Another rank: the next turn, if it has begun."""
        try:
            return _turn_decoder.decode(self._turns[0].recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def send_notes(self) -> None:
        """Another rank: give rank 0 what has been told here."""
        if self._told:
            assert self._notes is not None
            _send(self._notes, msgspec.msgpack.encode((self.rank, self._told)), "rank 0 takes no notes")
            self._told = []

    def close(self) -> None:
        """Let go of the sockets; the last turn still reaches the others."""
        for socket in (*self._turns, self._notes):
            if socket is not None:
                socket.close()

    def _collect(self) -> None:
        if self._notes is None:
            return
        while True:
            try:
                rank, notes = _notes_decoder.decode(self._notes.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            self._heard += [(rank, note) for note in notes]


_turn_decoder = msgspec.msgpack.Decoder(Turn)
_notes_decoder = msgspec.msgpack.Decoder(tuple[int, list[Note]])


def _socket(kind: int) -> "zmq.Socket[bytes]":
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    socket.set_hwm(_HIGH_WATER_FRAMES)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    return socket


def _connected(endpoint: str) -> "zmq.Socket[bytes]":
    """A socket to send with: it takes frames before the other end is there."""
    socket = _socket(zmq.PUSH)
    socket.connect(endpoint)
    return socket


def _send(socket: "zmq.Socket[bytes]", frame: bytes, problem: str) -> None:
    try:
        socket.send(frame, zmq.NOBLOCK)
    except zmq.Again:
        raise RankLostError(f"{problem}: {_HIGH_WATER_FRAMES} frames wait for it") from None
