"""One connection to one peer, as both sides see it: names, control messages, signs of life, its end.

States: greeting (the handshake runs, `peer_channel` is not known) -> open -> over. `end` is the only way to over: it
closes the link, which is how payloads in flight are ended, and tells the owner once.
"""

from collections.abc import Callable
from typing import NamedTuple

from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import LostReason
from services.engine.transfer.link import Link
from services.engine.transfer.wire import FRAME_MESSAGES, Control, Fate, Hello, Kind, control_tag, pack_frame


class End(NamedTuple):
    """Why a channel is over."""

    reason: LostReason
    detail: str


class Channel:
    """Speaks for one side on one link. Owned by a `SendChannel` or `ReceiveChannel`, on the transfer thread."""

    def __init__(
        self, number: int, link: Link, config: TransferConfig, now: float, on_end: Callable[[End], None]
    ) -> None:
        self.number = number
        """Ours: what the peer puts on its messages to us, and on the tags of payloads."""
        self.link = link
        self.peer_channel: int | None = None
        self.ended: End | None = None
        self._config = config
        self._on_end = on_end
        self._heard_at = now
        self._spoke_at = now
        self._unsent: list[Control] = []

    def open(self, hello: Hello, now: float) -> None:
        """The handshake is through: the peer listens on `hello.channel`."""
        self.peer_channel = hello.channel
        self._heard_at = now

    def say(self, message: Control, now: float) -> None:
        """Send a control message with the next `flush`; one that cannot be sent shows as a dead link."""
        if self.peer_channel is None or self.ended is not None:
            return
        self._spoke_at = now
        self._unsent.append(message)

    def note(self, kind: Kind, seq: int, now: float, fate: Fate = Fate.LANDED) -> None:
        """Say something of a payload; of payloads one after the other in one message."""
        last = self._unsent[-1] if self._unsent else None
        if last is not None and last.kind is kind and last.fate is fate and last.seq + last.num_seqs == seq:
            self._unsent[-1] = Control(kind, last.channel, last.seq, fate=fate, num_seqs=last.num_seqs + 1)
        elif self.peer_channel is not None:
            self.say(Control(kind, self.peer_channel, seq, fate=fate), now)

    def holds_back(self, kind: Kind, seq: int) -> bool:
        """Whether such a message was said and not sent yet."""
        return any(message.kind is kind and message.seq == seq for message in self._unsent)

    def flush(self) -> None:
        """Send what was said since the last one, several messages a frame."""
        while self._unsent:
            assert self.peer_channel is not None
            frame, self._unsent = self._unsent[:FRAME_MESSAGES], self._unsent[FRAME_MESSAGES:]
            self.link.say(pack_frame(frame), control_tag(self.peer_channel))

    def address(self, kind: Kind) -> Control:
        """A message of `kind` to the peer; only on an open channel."""
        assert self.peer_channel is not None
        return Control(kind, self.peer_channel)

    def heard(self, now: float) -> None:
        """The peer is alive."""
        self._heard_at = now

    def tick(self, now: float) -> None:
        """Notice a dead or silent peer; keep ourselves heard."""
        if self.ended is not None:
            return
        if not self.link.is_alive:
            self.end(LostReason.ENDPOINT, "UCX reported the endpoint failed")
        elif now - self._heard_at > self._config.silence_s:
            self.end(LostReason.SILENT, f"nothing heard for {now - self._heard_at:.1f} s")
        elif self.peer_channel is not None and now - self._spoke_at >= self._config.heartbeat_s:
            self.say(self.address(Kind.PING), now)

    def end(self, reason: LostReason, detail: str) -> None:
        """Close the link and tell the owner; the first reason stands."""
        if self.ended is not None:
            return
        if self.link.is_alive:
            self.flush()
        self._unsent.clear()
        self.ended = End(reason, detail)
        self.link.close()
        self._on_end(self.ended)
