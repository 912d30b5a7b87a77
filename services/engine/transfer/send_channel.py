"""The prefill side of one connection.

States: GREETING (hello sent) -> PROVING (test pages) -> READY (pushes) -> over. A push is queued until there is credit,
then in flight until UCX reports its send done (its page is free from then on), then unanswered until the peer's ANSWER;
each reports exactly one `Pushed`.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np

from services.common.ipc import AttemptKey
from services.engine.transfer.channel import Channel, End
from services.engine.transfer.context import Context
from services.engine.transfer.events import (
    LostReason,
    PeerAddress,
    PeerLost,
    PeerProven,
    Pushed,
    PushOutcome,
    SenderEvent,
)
from services.engine.transfer.handshake import client_hello, refusal
from services.engine.transfer.lanes import fastest_lane
from services.engine.transfer.link import Link
from services.engine.transfer.page_memory import Buffer
from services.engine.transfer.pages import Page
from services.engine.transfer.proof import Proof, TestPage
from services.engine.transfer.wire import HELLO_BYTES, Control, Fate, Hello, Kind, payload_tag

_OUTCOMES = {Fate.LANDED: PushOutcome.LANDED, Fate.DISCARDED: PushOutcome.DISCARDED, Fate.CORRUPT: PushOutcome.CORRUPT}


class SendState(Enum):
    """See the module's life cycle."""

    GREETING = "greeting"
    PROVING = "proving"
    READY = "ready"


@dataclass(slots=True)
class Outbound:
    """One push."""

    peer_id: str
    key: AttemptKey
    token_start: int
    num_tokens: int
    num_bytes: int
    page: Page
    deadline: float = 0.0

    def ended(self, outcome: PushOutcome) -> Pushed:
        """The event that ends it."""
        return Pushed(self.peer_id, self.key, self.token_start, self.num_tokens, self.num_bytes, outcome)


class SendChannel:
    """Connects to one peer, proves the pair, pushes pages against credit. Transfer thread."""

    def __init__(
        self, context: Context[SenderEvent], address: PeerAddress, number: int, link: Link, test_page: TestPage
    ) -> None:
        self.address = address
        self.channel = Channel(number, link, context.config, context.now(), self._on_end)
        self._context = context
        self._test_page = test_page
        self._state = SendState.GREETING
        self._proven_by = context.now() + context.config.connect_timeout_s
        self._meter = context.meters.peer(address.peer_id)
        self._proof: Proof | None = None
        self._credit = 0
        self._last_seq = 0
        self._queue: deque[Outbound] = deque()
        self._unanswered: dict[int, Outbound] = {}
        self._greet()

    def _greet(self) -> None:
        hello = client_hello(self._context.config, self.address, self.channel.number, self._context.pool.page_bytes)
        answer = np.zeros(HELLO_BYTES, dtype=np.uint8)
        self.channel.link.greet(hello.pack(), None, self._on_hello_sent)
        self.channel.link.greet(None, answer, partial(self._on_answer_read, answer))

    def _on_hello_sent(self, failure: str | None) -> None:
        if failure is not None:
            self.channel.end(LostReason.CONNECT, failure)

    def _on_answer_read(self, raw: Buffer, failure: str | None) -> None:
        if failure is not None:
            self.channel.end(LostReason.CONNECT, failure)
            return
        try:
            answer = Hello.unpack(bytes(raw))
        except ValueError as error:
            self.channel.end(LostReason.REFUSED, str(error))
            return
        reason = refusal(self._context.config, self.address, answer)
        if reason is not None:
            self.channel.end(LostReason.REFUSED, reason)
            return
        now = self._context.now()
        self.channel.open(answer, now)
        self._credit = answer.credit
        self._state = SendState.PROVING
        self._proof = Proof(self.channel, self._test_page, answer.credit, self._next_seq)
        self._proof.start(now)

    def _on_proof_answer(self, answer: Control, now: float) -> None:
        assert self._proof is not None
        try:
            rate = self._proof.on_answer(answer, now)
        except ValueError as error:
            self.channel.end(LostReason.PROOF, str(error))
            return
        if rate is None:
            return
        lane = fastest_lane(self.channel.link.transports(), device_pages=self._context.pool.memory.on_device)
        required = self._context.config.require_lane
        if required is not None and lane.is_slower_than(required):
            self.channel.end(LostReason.LANE, f"UCX uses {lane.value}, {required.value} is required")
            return
        self._state = SendState.READY
        self._meter.lane, self._meter.proven_gb_per_s = lane, rate
        assert self.channel.peer_channel is not None
        self.channel.say(Control(Kind.PROVEN, self.channel.peer_channel, rate=rate), now)
        self._context.events.put(PeerProven(self.address.peer_id, self.address.incarnation, lane.value, rate))

    def push(self, outbound: Outbound) -> None:
        """Send a page when there is credit; a peer that is not READY loses it at once."""
        if self._state is not SendState.READY or self.channel.ended is not None:
            outbound.page.release()
            self._report(outbound, PushOutcome.LOST)
            return
        self._queue.append(outbound)
        self._pump()

    def drop(self, key: AttemptKey) -> None:
        """Forget what has not been sent of an attempt; what is in flight finishes."""
        dropped = [outbound for outbound in self._queue if outbound.key == key]
        if not dropped:
            return
        self._queue = deque(outbound for outbound in self._queue if outbound.key != key)
        for outbound in dropped:
            outbound.page.release()
            self._report(outbound, PushOutcome.DROPPED)

    def _pump(self) -> None:
        peer = self.channel.peer_channel
        assert peer is not None
        while self._credit and self._queue and self.channel.ended is None:
            outbound, seq, now = self._queue.popleft(), self._next_seq(), self._context.now()
            self._credit -= 1
            self._unanswered[seq] = outbound
            outbound.deadline = now + self._context.config.push_timeout_s
            payload = outbound.page.buffer[: outbound.num_bytes]
            checksum = self._context.pool.memory.checksum(payload) if self._context.config.checksum else None
            self.channel.say(
                Control(
                    Kind.ANNOUNCE, peer, seq, outbound.key, outbound.token_start, outbound.num_tokens,
                    outbound.num_bytes, checksum=checksum,
                ),
                now,
            )  # fmt: skip
            self._meter.begin(now)
            self.channel.link.send(
                payload, payload_tag(peer, seq), partial(self._on_sent, seq, outbound), outbound.page
            )

    def _on_sent(self, seq: int, outbound: Outbound, failure: str | None) -> None:
        now = self._context.now()
        outbound.page.release()
        self._meter.end(now, outbound.num_bytes if failure is None else 0)
        if failure is None:
            self.channel.say(self.channel.address(Kind.SENT, seq), now)
        else:
            self.channel.end(LostReason.ENDPOINT, failure)

    def _on_push_answer(self, answer: Control) -> None:
        outbound = self._unanswered.pop(answer.seq, None)
        if outbound is None:
            self.channel.end(LostReason.PROTOCOL, f"answered payload {answer.seq}, which is not in flight")
            return
        self._credit += 1
        self._report(outbound, _OUTCOMES[answer.fate])
        self._pump()

    def on_control(self, message: Control, now: float) -> None:
        """A control message for this channel."""
        if self.channel.ended is not None:
            return
        self.channel.heard(now)
        match message.kind:
            case Kind.ANSWER if self._state is SendState.PROVING:
                self._on_proof_answer(message, now)
            case Kind.ANSWER if self._state is SendState.READY:
                self._on_push_answer(message)
            case Kind.PING:
                pass
            case Kind.BYE:
                self.channel.end(LostReason.CLOSED, "the peer closed the connection")
            case _:
                self.channel.end(LostReason.PROTOCOL, f"unexpected {message.kind.name} in state {self._state.value}")

    def tick(self, now: float) -> None:
        """Deadlines and signs of life."""
        self.channel.tick(now)
        if self.channel.ended is not None:
            return
        if self._state is not SendState.READY and now > self._proven_by:
            reason = LostReason.CONNECT if self._state is SendState.GREETING else LostReason.PROOF
            self.channel.end(reason, f"not proven within {self._context.config.connect_timeout_s} s")
            return
        oldest = next(iter(self._unanswered.values()), None)
        if oldest is not None and now > oldest.deadline:
            self.channel.end(LostReason.DEADLINE, f"a push of {oldest.key} was not answered in time")

    def leave(self, now: float) -> None:
        """Close on purpose."""
        if self.channel.peer_channel is not None:
            self.channel.say(self.channel.address(Kind.BYE), now)
        self.channel.end(LostReason.CLOSED, "closed here")

    def _on_end(self, end: End) -> None:
        for outbound in self._queue:
            outbound.page.release()
        lost = [*self._unanswered.values(), *self._queue]
        self._queue.clear()
        self._unanswered.clear()
        for outbound in lost:
            self._report(outbound, PushOutcome.LOST)
        self._context.meters.lost[end.reason.value] += 1
        self._context.meters.retire(self.address.peer_id, self._meter)
        self._context.events.put(PeerLost(self.address.peer_id, self.address.incarnation, end.reason, end.detail))

    def _report(self, outbound: Outbound, outcome: PushOutcome) -> None:
        self._context.meters.outcomes[outcome.value] += 1
        self._context.events.put(outbound.ended(outcome))

    def _next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq
