"""The decode side of one connection.

States: greeting (no hello yet) -> open (test pages only) -> proven -> over; or greeting -> refused -> over. A payload
is announced, placed (`Admission`), received when UCX says so *and* the sender said SENT, then answered, which returns
its credit. Pages that the peer shares are mapped with its hello: then a payload is read out of its page, TAKEN tells
the sender, and SENT that the page was its own all the while.
"""

import logging
from collections.abc import Callable
from functools import partial

import numpy as np

from services.engine.transfer.admission import Admission, Inbound
from services.engine.transfer.channel import Channel, End
from services.engine.transfer.context import Context
from services.engine.transfer.events import Damaged, LostReason, PeerLost, PeerProven, Received, ReceiverEvent
from services.engine.transfer.handshake import judge_hello, server_answer
from services.engine.transfer.link import Link
from services.engine.transfer.page_memory import Buffer, MappingError
from services.engine.transfer.pages import Page
from services.engine.transfer.stats import PeerMeter
from services.engine.transfer.wire import HELLO_BYTES, Control, Fate, Hello, Kind, Verdict, payload_tag

log = logging.getLogger(__name__)

_REFUSAL_LINGER_S = 1.0
"""How long a refused link stays open for the peer to read why."""


class ReceiveChannel:
    """Greets one peer and receives its pages. Transfer thread."""

    def __init__(
        self,
        context: Context[ReceiverEvent],
        admission: Admission,
        number: int,
        link: Link,
        on_open: Callable[["ReceiveChannel"], None],
    ) -> None:
        self.channel = Channel(number, link, context.config, context.now(), self._on_end)
        self.hello: Hello | None = None
        """The peer's, once it was accepted."""
        self._context = context
        self._admission = admission
        self._on_open = on_open
        self._is_proven = False
        self._heads = context.config.heads
        """Those that both sides hold, once the hello is accepted."""
        self._meter = PeerMeter()
        self._inbound: dict[int, Inbound] = {}
        self._greeted_by = context.now() + context.config.connect_timeout_s
        hello = np.zeros(HELLO_BYTES, dtype=np.uint8)
        link.greet(None, hello, partial(self._on_hello_read, hello))

    @property
    def is_over(self) -> bool:
        """See Receiving."""
        return self.channel.ended is not None

    def _on_hello_read(self, raw: Buffer, failure: str | None) -> None:
        if failure is not None:
            self.channel.end(LostReason.CONNECT, failure)
            return
        try:
            hello = Hello.unpack(bytes(raw))
        except ValueError as error:
            self.channel.end(LostReason.REFUSED, str(error))
            return
        config, page_bytes = self._context.config, self._context.pool.page_bytes
        verdict = judge_hello(config, page_bytes, hello)
        answer = server_answer(config, hello, verdict, self.channel.number, page_bytes)
        if verdict is Verdict.ACCEPTED:
            self._accept(hello)
            answer = answer._replace(reads_pages=self.channel.link.reads_pages)
        else:
            self._greeted_by = self._context.now() + _REFUSAL_LINGER_S
        self.channel.link.greet(answer.pack(), None, self._on_answer_sent)

    def _accept(self, hello: Hello) -> None:
        self.hello = hello
        self._heads = hello.heads.meet(self._context.config.heads)
        self._on_open(self)
        self.channel.open(hello, self._context.now())
        self._meter = self._context.meters.peer(hello.name)
        if hello.share and self._context.config.may_map:
            self._map(hello)

    def _map(self, hello: Hello) -> None:
        try:
            self.channel.link.read_pages(self._context.pool.memory.map(hello.share))
            log.info("the pages of %s are mapped here", hello.name)
        except MappingError as error:
            log.info("the pages of %s cannot be mapped here, so UCX moves them: %s", hello.name, error)

    def _on_answer_sent(self, failure: str | None) -> None:
        if failure is not None:
            self.channel.end(LostReason.CONNECT, failure)

    def _on_proven(self, rate: float) -> None:
        assert self.hello is not None
        lane = self.channel.link.lane(on_device=self._context.pool.memory.on_device)
        required = self._context.config.require_lane
        if required is not None and lane.is_slower_than(required):
            self.channel.end(LostReason.LANE, f"UCX uses {lane.value}, {required.value} is required")
            return
        self._is_proven = True
        self._meter.lane, self._meter.proven_gb_per_s = lane, rate
        self._context.events.put(PeerProven(self.hello.peer_id, self.hello.incarnation, lane.value, rate))

    def _on_announce(self, message: Control) -> None:
        is_proof = message.kind is Kind.PROOF
        problem = self._problem(message, is_proof)
        if problem is not None:
            self.channel.end(LostReason.PROTOCOL, problem)
            return
        inbound = Inbound(
            self, message.seq, message.key, message.token_start, message.num_tokens, message.num_bytes,
            message.checksum, is_proof, message.page * self._context.pool.page_bytes,
        )  # fmt: skip
        self._inbound[message.seq] = inbound
        self._admission.place(inbound)

    def _problem(self, message: Control, is_proof: bool) -> str | None:
        if message.seq in self._inbound:
            return f"payload {message.seq} was announced twice"
        if len(self._inbound) >= self._context.config.credit:
            return f"more than the credit of {self._context.config.credit} payloads were announced"
        if not 0 < message.num_bytes <= self._context.pool.page_bytes:
            return f"a payload of {message.num_bytes} bytes does not fit a page of {self._context.pool.page_bytes}"
        if not self.channel.link.has_page(message.page * self._context.pool.page_bytes, message.num_bytes):
            return f"a payload lies in page {message.page}, which was not shared"
        return None if is_proof or self._is_proven else "a payload was announced before the pair was proven"

    def post(self, inbound: Inbound, page: Page | None) -> None:
        """See Receiving."""
        inbound.page, now = page, self._context.now()
        inbound.due = now + self._context.config.push_timeout_s
        self._meter.begin(now)
        link, on_done = self.channel.link, partial(self._on_received, inbound)
        if link.reads_pages:
            if page is None:
                on_done(None)  # nobody wants it: it is read as soon as nothing of it is
            else:
                link.read_page(page, inbound.source, inbound.num_bytes, on_done)
            return
        tag = payload_tag(self.channel.number, inbound.seq)
        if page is None:
            link.receive(self._context.pool.scratch[: inbound.num_bytes], tag, on_done)
        else:
            link.receive_page(page, inbound.num_bytes, tag, on_done)

    def _on_received(self, inbound: Inbound, failure: str | None) -> None:
        self._meter.end(self._context.now(), inbound.num_bytes if failure is None else 0)
        if failure is None and not self.is_over:
            inbound.is_received = True
            if self.channel.link.reads_pages:
                self.channel.note(Kind.TAKEN, inbound.seq, self._context.now())
            self._settle(inbound)
            return
        if inbound.page is not None:
            inbound.page.release()
        self.channel.end(LostReason.ENDPOINT, failure or "over")

    def _on_sent(self, message: Control) -> None:
        for seq in message.seqs:
            inbound = self._inbound.get(seq)
            if inbound is None:
                self.channel.end(LostReason.PROTOCOL, f"payload {seq} was sent but not announced")
                return
            inbound.is_sent = True
            self._settle(inbound)

    def _settle(self, inbound: Inbound) -> None:
        if not (inbound.is_received and inbound.is_sent):
            return
        del self._inbound[inbound.seq]
        fate = self._fate(inbound)
        now = self._context.now()
        if not inbound.is_proof:
            self._context.meters.outcomes[fate.name.lower()] += 1
            self._tell(inbound, fate)
        if inbound.page is not None and (inbound.is_proof or fate is not Fate.LANDED):
            inbound.page.release()
        self.channel.note(Kind.ANSWER, inbound.seq, now, fate)

    def _fate(self, inbound: Inbound) -> Fate:
        if inbound.page is None or not self._admission.wants(inbound):
            return Fate.DISCARDED
        if inbound.checksum is None:
            return Fate.LANDED
        checksum = self._context.pool.memory.checksum(inbound.page.buffer[: inbound.num_bytes])
        return Fate.LANDED if checksum == inbound.checksum else Fate.CORRUPT

    def _tell(self, inbound: Inbound, fate: Fate) -> None:
        assert self.hello is not None
        of = (self.hello.peer_id, inbound.key, inbound.token_start, inbound.num_tokens)
        if fate is Fate.LANDED and inbound.page is not None:
            self._context.events.put(Received(*of, inbound.num_bytes, self._heads, inbound.page))
        elif fate is Fate.CORRUPT:
            self._context.events.put(Damaged(*of))

    def on_control(self, message: Control, now: float) -> None:
        """A control message for this channel."""
        if self.is_over:
            return
        self.channel.heard(now)
        match message.kind:
            case Kind.ANNOUNCE | Kind.PROOF:
                self._on_announce(message)
            case Kind.SENT:
                self._on_sent(message)
            case Kind.PROVEN:
                self._on_proven(message.rate)
            case Kind.PING:
                pass
            case Kind.BYE:
                self.channel.end(LostReason.CLOSED, "the peer closed the connection")
            case _:
                self.channel.end(LostReason.PROTOCOL, f"unexpected {message.kind.name}")

    def tick(self, now: float) -> None:
        """Deadlines and signs of life."""
        self.channel.tick(now)
        if self.is_over:
            return
        if self.hello is None and now > self._greeted_by:
            self.channel.end(LostReason.REFUSED, "no acceptable hello in time")
        elif any(inbound.due is not None and now > inbound.due for inbound in self._inbound.values()):
            self.channel.end(LostReason.DEADLINE, "an announced payload did not come in time")

    def leave(self, now: float) -> None:
        """Close on purpose."""
        if self.channel.peer_channel is not None:
            self.channel.say(self.channel.address(Kind.BYE), now)
        self.channel.end(LostReason.CLOSED, "closed here")

    def replace(self) -> None:
        """The same peer connected again."""
        self.channel.end(LostReason.REPLACED, "the peer connected again")

    def _on_end(self, end: End) -> None:
        for inbound in self._inbound.values():
            if inbound.is_received and inbound.page is not None:
                inbound.page.release()
        self._inbound.clear()
        self._context.meters.lost[end.reason.value] += 1
        if self.hello is not None:
            self._context.meters.retire(self.hello.name, self._meter)
            self._context.events.put(PeerLost(self.hello.peer_id, self.hello.incarnation, end.reason, end.detail))
