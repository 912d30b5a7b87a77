"""Pushes to one peer, from the page handed over to the peer's answer.

    queued ── credit ──> announced ── fewer than `depth` move ──> moving ── UCX ──> sent ── ANSWER ──> gone
       └── drop ──> gone

Announced ahead of its turn, a payload finds its receive posted: none waits for a round trip. Its page is free once UCX
reports the send; its credit returns with the answer. Each push reports exactly one `Pushed`. Where the peer reads the
pages by itself, a payload moves from its announcement on, and TAKEN is what UCX's report is elsewhere.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from services.common.ipc import AttemptKey
from services.engine.transfer.channel import Channel
from services.engine.transfer.context import Context
from services.engine.transfer.events import LostReason, Pushed, PushOutcome, SenderEvent
from services.engine.transfer.pages import Page
from services.engine.transfer.stats import PeerMeter
from services.engine.transfer.wire import Control, Fate, Kind, payload_tag

_AT_ONCE = (1, 4)
"""An idle peer hears of the first page, and of the next three, while the rest of many is still being described."""
_OUTCOMES = {Fate.LANDED: PushOutcome.LANDED, Fate.DISCARDED: PushOutcome.DISCARDED, Fate.CORRUPT: PushOutcome.CORRUPT}


@dataclass(slots=True, eq=False)
class Outbound:
    """One push."""

    peer_id: str
    key: AttemptKey
    token_start: int
    num_tokens: int
    num_bytes: int
    page: Page
    is_filled: Callable[[], bool] = lambda: True
    """Whether the device has written the page; before, it is not in a queue."""
    is_dropped: bool = False
    seq: int = 0
    deadline: float = 0.0
    """Both set when it is announced."""

    def ended(self, outcome: PushOutcome) -> Pushed:
        """The event that ends it."""
        return Pushed(self.peer_id, self.key, self.token_start, self.num_tokens, self.num_bytes, outcome)


class OutboundQueue:
    """Owned by the `SendChannel` of the peer, on the transfer thread."""

    def __init__(
        self, context: Context[SenderEvent], channel: Channel, meter: PeerMeter, next_seq: Callable[[], int]
    ) -> None:
        self._context = context
        self._channel = channel
        self._meter = meter
        self._next_seq = next_seq
        self._credit = 0
        self._num_moving = 0
        self._queued: deque[Outbound] = deque()
        self._announced: deque[Outbound] = deque()
        """Those that do not move yet."""
        self._unanswered: dict[int, Outbound] = {}
        """By seq, oldest first: announced, moving or sent."""

    def grant(self, credit: int) -> None:
        """The peer takes so many announced and unanswered at once."""
        self._credit = credit

    def push(self, outbound: Outbound) -> None:
        """Take a page over and send it when its turn comes."""
        self._queued.append(outbound)
        self._pump()

    def drop(self, key: AttemptKey) -> None:
        """Forget what has not been announced of an attempt; the peer waits for the rest."""
        dropped = [outbound for outbound in self._queued if outbound.key == key]
        if not dropped:
            return
        self._queued = deque(outbound for outbound in self._queued if outbound.key != key)
        for outbound in dropped:
            outbound.page.release()
            self._report(outbound, PushOutcome.DROPPED)

    def answered(self, answer: Control) -> None:
        """The peer has told what became of payloads; one that it cannot have got ends the channel."""
        outcome = _OUTCOMES[answer.fate]
        for seq in answer.seqs:
            outbound = self._unanswered.pop(seq, None)
            if outbound is None:
                self._channel.end(LostReason.PROTOCOL, f"answered payload {seq}, which is not in flight")
                return
            self._credit += 1
            self._report(outbound, outcome)
        self._pump()

    def overdue(self, now: float) -> Outbound | None:
        """The oldest unanswered push, when it is past its deadline."""
        oldest = next(iter(self._unanswered.values()), None)
        return oldest if oldest is not None and now > oldest.deadline else None

    def lose_all(self) -> None:
        """The channel is over. Pages that UCX still refers to come back when it reports them."""
        for outbound in (*self._announced, *self._queued):
            outbound.page.release()
        lost = [*self._unanswered.values(), *self._queued]
        for pending in (self._announced, self._queued, self._unanswered):
            pending.clear()
        for outbound in lost:
            self._report(outbound, PushOutcome.LOST)

    def _pump(self) -> None:
        while self._credit and self._queued and self._channel.ended is None:
            self._credit -= 1
            self._announce(self._queued.popleft())
        self._move()

    def _announce(self, outbound: Outbound) -> None:
        config, now = self._context.config, self._context.now()
        outbound.seq, outbound.deadline = self._next_seq(), now + config.push_timeout_s
        self._unanswered[outbound.seq] = outbound
        self._announced.append(outbound)
        checksum = None
        if config.checksum:
            checksum = self._context.pool.memory.checksum(outbound.page.buffer[: outbound.num_bytes])
        peer = self._channel.peer_channel
        assert peer is not None
        self._channel.say(
            Control(
                Kind.ANNOUNCE, peer, outbound.seq, outbound.key, outbound.token_start, outbound.num_tokens,
                outbound.num_bytes, checksum=checksum, page=outbound.page.index,
            ),
            now,
        )  # fmt: skip
        if len(self._unanswered) in _AT_ONCE:
            self._channel.flush()

    def _move(self) -> None:
        peer, is_lending = self._channel.peer_channel, self._channel.link.is_lending
        assert peer is not None
        while self._announced and self._channel.ended is None:
            if not is_lending and self._num_moving >= self._context.config.depth:
                return  # a peer that reads by itself reads one after the other
            outbound = self._announced.popleft()
            if not is_lending and self._channel.holds_back(Kind.ANNOUNCE, outbound.seq):
                self._channel.flush()  # the announcement goes ahead of the payload, so that UCX finds a receive
            self._num_moving += 1
            self._meter.begin(self._context.now())
            self._channel.link.send_page(
                outbound.page, outbound.num_bytes, payload_tag(peer, outbound.seq), partial(self._on_sent, outbound)
            )

    def _on_sent(self, outbound: Outbound, failure: str | None) -> None:
        now = self._context.now()
        outbound.page.release()
        self._num_moving -= 1
        self._meter.end(now, outbound.num_bytes if failure is None else 0)
        if failure is not None:
            self._channel.end(LostReason.ENDPOINT, failure)
            return
        self._channel.note(Kind.SENT, outbound.seq, now)
        if self._announced:
            self._move()

    def _report(self, outbound: Outbound, outcome: PushOutcome) -> None:
        self._context.meters.outcomes[outcome.value] += 1
        self._context.events.put(outbound.ended(outcome))
