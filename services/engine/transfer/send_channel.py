"""The prefill side of one connection.

States: GREETING (hello sent) -> PROVING (test pages) -> READY (pushes, see `outbound`) -> over.
"""

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
    PushOutcome,
    SenderEvent,
)
from services.engine.transfer.handshake import client_hello, refusal
from services.engine.transfer.link import Link
from services.engine.transfer.outbound import Outbound, OutboundQueue
from services.engine.transfer.page_memory import NOT_SHARED, Buffer
from services.engine.transfer.proof import Proof, TestPage
from services.engine.transfer.wire import HELLO_BYTES, Control, Hello, Kind, payload_tag


class SendState(Enum):
    """See the module's life cycle."""

    GREETING = "greeting"
    PROVING = "proving"
    READY = "ready"


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
        self._last_seq = 0
        self._queue = OutboundQueue(context, self.channel, self._meter, self._next_seq)
        self._greet()

    def _greet(self) -> None:
        config, pool = self._context.config, self._context.pool
        share = pool.share if config.may_map else NOT_SHARED
        hello = client_hello(config, self.address, self.channel.number, pool.page_bytes)._replace(share=share)
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
        if answer.reads_pages:
            self.channel.link.lend_pages()
        self._queue.grant(answer.credit)
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
        if rate is not None:
            self._on_proven(rate, now)

    def _on_proven(self, rate: float, now: float) -> None:
        lane = self.channel.link.lane(on_device=self._context.pool.memory.on_device)
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
            self._context.meters.outcomes[PushOutcome.LOST.value] += 1
            self._context.events.put(outbound.ended(PushOutcome.LOST))
        else:
            self._queue.push(outbound)

    def drop(self, key: AttemptKey) -> None:
        """Forget what has not been announced of an attempt; the rest finishes."""
        self._queue.drop(key)

    def on_control(self, message: Control, now: float) -> None:
        """A control message for this channel."""
        if self.channel.ended is not None:
            return
        self.channel.heard(now)
        match message.kind:
            case Kind.ANSWER if self._state is SendState.PROVING:
                self._on_proof_answer(message, now)
            case Kind.ANSWER if self._state is SendState.READY:
                self._queue.answered(message)
            case Kind.TAKEN:
                self._on_taken(message)
            case Kind.PING:
                pass
            case Kind.BYE:
                self.channel.end(LostReason.CLOSED, "the peer closed the connection")
            case _:
                self.channel.end(LostReason.PROTOCOL, f"unexpected {message.kind.name} in state {self._state.value}")

    def _on_taken(self, message: Control) -> None:
        assert self.channel.peer_channel is not None
        for seq in message.seqs:
            if not self.channel.link.taken(payload_tag(self.channel.peer_channel, seq)):
                self.channel.end(LostReason.PROTOCOL, f"took payload {seq}, which it was not lent")
                return

    def tick(self, now: float) -> None:
        """Deadlines and signs of life."""
        self.channel.tick(now)
        if self.channel.ended is not None:
            return
        if self._state is not SendState.READY and now > self._proven_by:
            reason = LostReason.CONNECT if self._state is SendState.GREETING else LostReason.PROOF
            self.channel.end(reason, f"not proven within {self._context.config.connect_timeout_s} s")
            return
        late = self._queue.overdue(now)
        if late is not None:
            self.channel.end(LostReason.DEADLINE, f"a push of {late.key} was not answered in time")

    def leave(self, now: float) -> None:
        """Close on purpose."""
        if self.channel.peer_channel is not None:
            self.channel.say(self.channel.address(Kind.BYE), now)
        self.channel.end(LostReason.CLOSED, "closed here")

    def _on_end(self, end: End) -> None:
        self._queue.lose_all()
        self._context.meters.lost[end.reason.value] += 1
        self._context.meters.retire(self.address.peer_id, self._meter)
        self._context.events.put(PeerLost(self.address.peer_id, self.address.incarnation, end.reason, end.detail))

    def _next_seq(self) -> int:
        self._last_seq += 1
        return self._last_seq
