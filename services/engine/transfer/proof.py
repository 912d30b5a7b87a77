"""Test pages: they prove that a pair moves a page unchanged, map or register the pages, and measure the rate (R16)."""

from collections.abc import Callable
from functools import partial

from services.engine.transfer.channel import Channel
from services.engine.transfer.pages import PagePool
from services.engine.transfer.wire import Control, Fate, Kind, payload_tag

_ROUNDS = 4
"""Timed pages, in flight together: enough to see the pair's real rate, little enough to cost nothing."""
_PATTERN_SEED = 20_516


class TestPage:
    """The scratch page of a sender, full of a known pattern, shared by all its proofs: it is only ever read."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def __init__(self, pool: PagePool) -> None:
        pool.memory.fill(pool.scratch, _PATTERN_SEED)
        self.buffer = pool.scratch
        self.index = len(pool)
        self.checksum = pool.memory.checksum(pool.scratch)


class Proof:
    """One page with its checksum, then timed pages without. Sender side, transfer thread."""

    def __init__(self, channel: Channel, page: TestPage, credit: int, next_seq: Callable[[], int]) -> None:
        self._channel = channel
        self._page = page
        self._num_timed = min(_ROUNDS, credit)
        self._next_seq = next_seq
        self._unanswered: set[int] = set()
        self._timed_since: float | None = None

    def start(self, now: float) -> None:
        """Send the page that warms the buffers and is verified."""
        self._send(self._page.checksum, now)

    def on_answer(self, answer: Control, now: float) -> float | None:
        """Take the peer's answer; GB/s once the pair is proven. Raises ValueError when a page did not arrive whole."""
        if not self._unanswered.issuperset(answer.seqs) or answer.fate is not Fate.LANDED:
            raise ValueError(f"test page {answer.seq} came out as {answer.fate.name.lower()}")
        self._unanswered.difference_update(answer.seqs)
        if self._unanswered:
            return None
        if self._timed_since is None:
            self._timed_since = now
            for _ in range(self._num_timed):
                self._send(None, now)
            return None
        return self._num_timed * len(self._page.buffer) / max(now - self._timed_since, 1e-9) / 1e9

    def _send(self, checksum: int | None, now: float) -> None:
        peer = self._channel.peer_channel
        assert peer is not None
        seq = self._next_seq()
        self._unanswered.add(seq)
        size = len(self._page.buffer)
        self._channel.say(Control(Kind.PROOF, peer, seq, num_bytes=size, checksum=checksum, page=self._page.index), now)
        self._channel.link.send(self._page.buffer, payload_tag(peer, seq), partial(self._on_sent, seq, now))

    def _on_sent(self, seq: int, now: float, failure: str | None) -> None:
        if failure is None:
            self._channel.note(Kind.SENT, seq, now)
