"""The bytes of the transfer protocol: hello, control messages and tags. Little-endian, fixed layouts, no pickle.

Each side numbers its own channels; a message carries the *receiver's* number, so that after a reconnect nothing of the
old connection can be taken for the new one's. Payload `seq` of a channel travels under its own UCX tag; everything
about it travels in control messages, in any order relative to the payload. Several control messages to one peer share a
frame: a frame costs both sides a send and a receive of UCX, whatever is in it. Most messages only name a payload and
are short; those that describe one are long.

Any change here raises TRANSFER_PROTOCOL. Magic and protocol stay the first six bytes of a hello for ever.
"""

import hashlib
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from services.common.ipc import AttemptKey
from services.engine.transfer.heads import HeadRange

TRANSFER_PROTOCOL = 5

_MAGIC = b"SLKV"
SHARE_BYTES = 96
"""Room for what `PageMemory.share` gives."""
_HELLO = struct.Struct(f"<4sH H I I Q I I I 64s 64s 64s 32s {SHARE_BYTES}s ?")
HELLO_BYTES = _HELLO.size

_SHORT = struct.Struct("<B B H I I f")
_LONG = struct.Struct("<B B I I I 16s I I Q I I")
LONG_BYTES = _LONG.size

FRAME_MESSAGES = 16
"""Control messages in a frame at most: a busy thread says several at once, and it is still a short message for UCX."""
FRAME_BYTES = 1 + FRAME_MESSAGES * LONG_BYTES
"""Of the largest frame; one of fewer or short messages is shorter."""

_CHANNEL_BITS, _SEQ_BITS = 24, 32
MAX_CHANNEL = (1 << _CHANNEL_BITS) - 1
_CONTROL_TAG = 1 << 56
_PAYLOAD_TAG = 2 << 56
CONTROL_TAG_MASK = 0xFF << 56
"""Receive control messages of every channel: match the kind, ignore the rest."""


class Verdict(IntEnum):
    """The answer to a hello; anything but ACCEPTED is a refusal."""

    ACCEPTED = 0
    PROTOCOL = 1
    GROUP = 2
    INCARNATION = 3
    """The hello was meant for another start of this process: its old self is never talked to."""
    HEADS = 4
    """The two ranks have no KV head in common."""
    PAGE_BYTES = 5


class Kind(IntEnum):
    """Control messages."""

    ANNOUNCE = 1
    """Sender: payload `seq` is on its way; `checksum` is its CRC-32 where switched on."""
    SENT = 2
    """Sender: UCX reported payload `seq` sent, or it was TAKEN, so its page was not touched before now."""
    ANSWER = 3
    """Receiver: what became of payload `seq`; returns its credit."""
    PROOF = 4
    """Sender: like ANNOUNCE, of a test page."""
    PROVEN = 5
    """Sender: the pair is proven; `rate` is GB/s."""
    PING = 6
    BYE = 7
    """Either: the connection is closed on purpose."""
    TAKEN = 8
    """Receiver that reads the sender's pages: nothing reads the page of payload `seq` any more."""


class Fate(IntEnum):
    """What became of a payload, in an ANSWER."""

    LANDED = 0
    DISCARDED = 1
    CORRUPT = 2


class Hello(NamedTuple):
    """Both directions of the handshake."""

    protocol: int
    verdict: Verdict
    """In the answer; ACCEPTED in the hello."""
    channel: int
    """The channel number the peer must put on its messages."""
    rank: int
    page_bytes: int
    credit: int
    """In the answer: payloads that may be announced at once."""
    heads: HeadRange
    """The model's KV heads that the side that speaks holds; a payload carries those that both hold."""
    peer_id: str
    incarnation: str
    """Of the side that speaks."""
    expected_incarnation: str
    """Of the side it means to speak to."""
    group_digest: bytes
    """SHA-256 of the group's name."""
    share: bytes = b""
    """In the hello: what the sender's pages can be mapped by, from the same host; empty when by nothing."""
    reads_pages: bool = False
    """In the answer: the receiver has mapped them, and reads payloads by itself."""

    @property
    def name(self) -> str:
        """The rank of the peer that speaks."""
        return f"{self.peer_id}/{self.rank}"

    def pack(self) -> bytes:
        """HELLO_BYTES bytes."""
        names = (self.peer_id, self.incarnation, self.expected_incarnation)
        return _HELLO.pack(
            _MAGIC, self.protocol, self.verdict, self.channel, self.rank, self.page_bytes, self.credit,
            *self.heads, *(name.encode() for name in names), self.group_digest, self.share, self.reads_pages,
        )  # fmt: skip

    @classmethod
    def unpack(cls, raw: bytes) -> "Hello":
        """Raises ValueError when these are not the bytes of a hello."""
        magic, protocol, verdict, channel, rank, page_bytes, credit, first, count, *rest = _HELLO.unpack(raw)
        *names, digest, share, reads_pages = rest
        if magic != _MAGIC:
            raise ValueError(f"not a KV transfer peer: its first bytes are {magic!r}")
        peer_id, incarnation, expected = (name.rstrip(b"\0").decode() for name in names)
        return cls(
            protocol, Verdict(verdict), channel, rank, page_bytes, credit, HeadRange(first, count),
            peer_id, incarnation, expected, digest, share if any(share) else b"", reads_pages,
        )  # fmt: skip


_KINDS = {kind.value: kind for kind in Kind}
"""A dictionary finds a member several times faster than the enum does."""
_FATES = {fate.value: fate for fate in Fate}
_DESCRIBING = frozenset({Kind.ANNOUNCE, Kind.PROOF})
NO_ATTEMPT = AttemptKey("0" * 32, 0)
"""In messages that describe no payload."""


class Control(NamedTuple):
    """One control message. `key` to `page` are for ANNOUNCE and PROOF only, `fate` to `num_seqs` for the others."""

    kind: Kind
    channel: int
    seq: int = 0
    key: AttemptKey = NO_ATTEMPT
    token_start: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    checksum: int | None = None
    page: int = 0
    """The place of the sender's page among its pages, the scratch page being the last."""
    fate: Fate = Fate.LANDED
    rate: float = 0.0
    num_seqs: int = 1
    """SENT, TAKEN and ANSWER speak of so many payloads, from `seq` on."""

    @property
    def seqs(self) -> range:
        """The payloads it speaks of."""
        return range(self.seq, self.seq + self.num_seqs)

    def pack(self) -> bytes:
        """At most LONG_BYTES. Raises ValueError when the request id is not 128 bits in hexadecimal."""
        if self.kind not in _DESCRIBING:
            return _SHORT.pack(self.kind, self.fate, self.num_seqs, self.channel, self.seq, self.rate)
        return _LONG.pack(
            self.kind, self.checksum is not None, self.channel, self.seq, self.key.attempt,
            request_bytes(self.key.request_id), self.token_start, self.num_tokens, self.num_bytes, self.checksum or 0,
            self.page,
        )  # fmt: skip


def _read(raw: bytes, at: int) -> tuple[Control, int]:
    """The message that begins at `at`, and where it ends."""
    kind = _KINDS.get(raw[at])
    if kind is None:
        raise ValueError(f"{raw[at]} is no kind of message")
    if kind not in _DESCRIBING:
        _, fate, num_seqs, channel, seq, rate = _SHORT.unpack_from(raw, at)
        if fate not in _FATES:
            raise ValueError(f"{fate} is no fate of a payload")
        return Control(kind, channel, seq, fate=_FATES[fate], rate=rate, num_seqs=num_seqs), at + _SHORT.size
    _, has_checksum, channel, seq, attempt, request, start, tokens, size, crc, page = _LONG.unpack_from(raw, at)
    key, checksum = AttemptKey(request.hex(), attempt), crc if has_checksum else None
    return Control(kind, channel, seq, key, start, tokens, size, checksum, page), at + LONG_BYTES


def pack_frame(messages: Sequence[Control]) -> bytes:
    """1 to FRAME_MESSAGES messages, after a byte that says how many."""
    return bytes((len(messages),)) + b"".join([message.pack() for message in messages])


def unpack_frame(raw: bytes) -> list[Control]:
    """The messages of a frame, which may be longer than they are. Raises ValueError when it is none."""
    if not 0 < raw[0] <= FRAME_MESSAGES:
        raise ValueError(f"a frame has 1 to {FRAME_MESSAGES} messages, not {raw[0]}")
    messages, at = [], 1
    try:
        for _ in range(raw[0]):
            message, at = _read(raw, at)
            messages.append(message)
    except (struct.error, IndexError) as error:
        raise ValueError(f"a frame of {len(raw)} bytes cannot hold {raw[0]} messages") from error
    return messages


def request_bytes(request_id: str) -> bytes:
    """The 16 bytes of a request id, which is 32 hexadecimal digits. Raises ValueError otherwise."""
    raw = bytes.fromhex(request_id)
    if len(raw) != 16:
        raise ValueError(f"request_id must be 32 hexadecimal digits, got {request_id!r}")
    return raw


def control_tag(channel: int) -> int:
    """UCX tag of control messages to a channel."""
    return _CONTROL_TAG | channel << _SEQ_BITS


def payload_tag(channel: int, seq: int) -> int:
    """UCX tag of one payload: never used twice in the life of a channel (2^32 payloads)."""
    return _PAYLOAD_TAG | channel << _SEQ_BITS | seq


def group_digest(group: str) -> bytes:
    """What a hello carries of a group."""
    return hashlib.sha256(group.encode()).digest()
