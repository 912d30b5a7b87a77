"""A sender and a receiver joined by a fake network, driven step by step: the world `test_protocol` explores."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from services.common.ipc import AttemptKey
from services.engine.transfer.admission import Admission
from services.engine.transfer.context import Context
from services.engine.transfer.directory import Directory
from services.engine.transfer.events import LostReason, PeerAddress, Pushed, PushOutcome, Received
from services.engine.transfer.mailbox import Mailbox, Outbox
from services.engine.transfer.outbound import Outbound
from services.engine.transfer.page_memory import HostMemory, PageMemory, pattern
from services.engine.transfer.pages import PagePool
from services.engine.transfer.proof import TestPage
from services.engine.transfer.receive_channel import ReceiveChannel
from services.engine.transfer.send_channel import SendChannel
from tests.engine.transfer.driver import GROUP, config, key
from tests.engine.transfer.fake_net import FakeLink, SharedMemory

PAGE_BYTES, NUM_PAGES = 64, 3
KEYS = [key(number) for number in range(3)]
ADDRESS = PeerAddress("decode", "host", 1, "d-1", GROUP)


class SendSide:
    def __init__(self, now: Callable[[], float], memory: PageMemory) -> None:
        self.pool = PagePool(memory, NUM_PAGES, PAGE_BYTES)
        self.events: Mailbox[Any] = Mailbox()
        self.context = Context(config("prefill", "p-1", depth=1), self.pool, Outbox(self.events), now)
        self.channels: Directory[SendChannel] = Directory()
        self.test_page = TestPage(self.pool)

    def connect(self, link: FakeLink) -> SendChannel:
        return self.channels.open(
            lambda number: SendChannel(self.context, ADDRESS, number, link, self.test_page)  # type: ignore[arg-type]
        )


class ReceiveSide:
    def __init__(self, now: Callable[[], float], memory: PageMemory) -> None:
        self.pool = PagePool(memory, NUM_PAGES, PAGE_BYTES)
        self.events: Mailbox[Any] = Mailbox()
        self.context = Context(config("decode", "d-1", credit=2), self.pool, Outbox(self.events), now)
        self.admission = Admission(self.pool, early_grace_s=1.0, tombstone_s=20.0, now=now)
        self.channels: Directory[ReceiveChannel] = Directory()

    def accept(self, link: FakeLink) -> ReceiveChannel:
        return self.channels.open(
            lambda number: ReceiveChannel(self.context, self.admission, number, link, self._replace)  # type: ignore[arg-type]
        )

    def _replace(self, newcomer: ReceiveChannel) -> None:
        for channel in self.channels:
            if channel is not newcomer and channel.hello:
                channel.replace()


def told_by(side: SendSide | ReceiveSide) -> list[Any]:
    """What the side has had for its loop since the last time."""
    side.context.events.deliver()
    return side.events.drain()


class World:
    """Pushes are numbered; number n carries the pattern of seed n, so whatever is given out can be checked."""

    def __init__(self, *, shares_pages: bool = False) -> None:
        """`shares_pages`: the receiver reads payloads by itself."""
        self.clock = 100.0
        here, there = (SharedMemory(), SharedMemory()) if shares_pages else (HostMemory(), HostMemory())
        if isinstance(here, SharedMemory) and isinstance(there, SharedMemory):
            there.peer = here
        self.sender, self.receiver = SendSide(lambda: self.clock, here), ReceiveSide(lambda: self.clock, there)
        self.links: list[tuple[FakeLink, FakeLink]] = []
        self.held: list[Received] = []
        self.pushed = 0
        self.ended: Counter[int] = Counter()
        self.landed: set[int] = set()
        self.given_out: set[int] = set()

    def connect(self) -> None:
        here, there = FakeLink(), FakeLink()
        here.peer, there.peer = there, here
        self.links.append((here, there))
        self.sender.connect(here)
        self.receiver.accept(there)
        self.run_until_idle()

    def push(self, attempt: AttemptKey) -> None:
        page = self.sender.pool.acquire()
        if page is None:
            return
        page.buffer[:] = pattern(PAGE_BYTES, self.pushed)
        outbound = Outbound("decode", attempt, self.pushed, 1, PAGE_BYTES, page)
        self.pushed += 1
        channel = next(iter(self.sender.channels), None)
        if channel is not None:
            channel.push(outbound)
        else:
            page.release()
            self.sender.context.events.put(outbound.ended(PushOutcome.LOST))

    def sender_gives_up(self, *, frees_its_pages: bool) -> None:
        for channel in self.sender.channels:
            channel.channel.end(LostReason.DEADLINE, "given up")
        if frees_its_pages:
            self.links[-1][0].let_go()
            self.links[-1][0].collect()

    def poll(self) -> None:
        """Take both sides' events; what is given out must be what was pushed under its number, once."""
        for event in told_by(self.receiver):
            if isinstance(event, Received):
                assert bytes(event.page.buffer) == pattern(PAGE_BYTES, event.token_start).tobytes()
                assert event.token_start not in self.given_out
                self.given_out.add(event.token_start)
                self.held.append(event)
        for event in told_by(self.sender):
            if isinstance(event, Pushed):
                self.ended[event.token_start] += 1
                if event.outcome is PushOutcome.LANDED:
                    self.landed.add(event.token_start)

    def scatter(self) -> None:
        """Release the page received first."""
        self.held.pop(0).page.release()
        self.receiver.admission.serve()

    def tick(self) -> None:
        self.sender.channels.tick(self.clock)
        self.receiver.channels.tick(self.clock)
        self.receiver.admission.tick(self.clock)

    def steps(self) -> list[Callable[[], Any]]:
        """Everything the network could do next."""
        steps: list[Callable[[], Any]] = [self.sender.channels.flush, self.receiver.channels.flush]
        for here, there in self.links:
            steps += self._steps_of(here, self.sender) + self._steps_of(there, self.receiver)
        return steps

    def run_until_idle(self) -> None:
        """Let the newest connection's network do all it can."""
        here, there = self.links[-1]
        for _ in range(20):
            for link, side in ((here, self.sender), (there, self.receiver)):
                link.read_stream()
                while link.peer.control:
                    self.deliver(link, side)
                for pair in link.matches():
                    link.move(*pair)
                while link.moved:
                    link.acknowledge()
                link.read_all()
                link.collect()
                side.channels.flush()

    def deliver(self, link: FakeLink, side: SendSide | ReceiveSide) -> None:
        """The oldest control message on its way to `link`."""
        side.channels.deliver([link.peer.control.popleft()], self.clock)

    def end(self) -> None:
        """Both sides lose each other for good, and everything must come back."""
        for side in (self.sender, self.receiver):
            side.channels.leave(self.clock)
        for pair in self.links:
            for link in pair:
                link.let_go()
                link.read_all()
                link.collect()
                assert link.mapping is None or link.mapping.is_closed
        self.tick()
        self.poll()
        while self.held:
            self.scatter()
        assert self.ended == Counter(range(self.pushed))
        assert self.landed <= self.given_out
        assert self.sender.pool.counts().free == NUM_PAGES
        assert self.receiver.pool.counts().free == NUM_PAGES

    def _steps_of(self, link: FakeLink, side: SendSide | ReceiveSide) -> list[Callable[[], Any]]:
        steps: list[Callable[[], Any]] = [link.collect] if not link.is_drained else []
        if link.mapping is not None and link.mapping.reads:
            steps.append(link.mapping.step)
        if link.is_closed:
            return [*steps, link.let_go] if steps else []
        if link.peer.stream:
            steps.append(link.read_stream)
        if link.peer.control:
            steps.append(partial(self.deliver, link, side))
        steps += [partial(link.move, *pair) for pair in link.matches()]
        return steps + ([link.acknowledge] if link.moved else [])
