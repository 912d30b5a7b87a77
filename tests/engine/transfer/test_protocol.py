"""Both sides' protocol code on a network whose every step is chosen: late, lost, reordered, broken anywhere.

What must hold, whatever happens: no page is lost or used twice, every push ends exactly once, and what the receiver
gives out is, byte for byte, what was pushed under that name.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.ipc import AttemptKey
from services.engine.transfer.events import LostReason, PeerLost
from services.engine.transfer.wire import Control, Kind
from tests.engine.transfer.fake_net import FakeLink
from tests.engine.transfer.world import KEYS, NUM_PAGES, PAGE_BYTES, World, told_by


@pytest.fixture
def world() -> World:
    return connected_world()


@pytest.fixture
def shared() -> World:
    """The receiver reads payloads out of the sender's pages by itself."""
    return connected_world(shares_pages=True)


def connected_world(*, shares_pages: bool = False) -> World:
    made = World(shares_pages=shares_pages)
    made.receiver.admission.expect(KEYS[0])
    made.connect()
    return made


def test_bytes_pulled_from_a_page_its_sender_has_reused_are_never_given_out(world: World) -> None:
    _, there = world.links[0]
    world.push(KEYS[0])
    world.deliver(there, world.receiver)  # ANNOUNCE: the receive is posted
    world.sender_gives_up(frees_its_pages=True)
    world.push(KEYS[0])  # writes the same page for another push
    [(sent, posted)] = there.matches()
    there.move(sent, posted)  # the receiver's read completes all the same
    there.collect()
    world.poll()
    assert world.given_out == set()
    world.end()


def test_bytes_read_from_a_shared_page_its_sender_has_reused_are_never_given_out(shared: World) -> None:
    _, there = shared.links[0]
    shared.push(KEYS[0])
    shared.sender.channels.flush()
    shared.deliver(there, shared.receiver)  # ANNOUNCE: the read is under way
    shared.sender_gives_up(frees_its_pages=True)
    shared.push(KEYS[0])  # writes the same page for another push
    there.read_all()
    there.collect()
    shared.poll()
    assert shared.given_out == set()
    shared.end()


def test_a_page_being_read_is_nobodys_until_the_read_is_done_whatever_becomes_of_the_connection(shared: World) -> None:
    _, there = shared.links[0]
    shared.push(KEYS[0])
    shared.sender.channels.flush()
    shared.deliver(there, shared.receiver)
    shared.receiver.channels.leave(shared.clock)
    there.collect()
    assert shared.receiver.pool.counts().quarantined == 1
    assert is_mapped(there)
    there.read_all()
    there.collect()
    assert shared.receiver.pool.counts().free == NUM_PAGES
    assert not is_mapped(there)
    shared.end()


def is_mapped(link: FakeLink) -> bool:
    return link.mapping is not None and not link.mapping.is_closed


def test_shared_pages_are_all_read_at_once_and_confirmed_in_one_message_each(shared: World) -> None:
    here, there = shared.links[0]
    for _ in range(2):
        shared.push(KEYS[0])
    shared.sender.channels.flush()
    while here.control:
        shared.deliver(there, shared.receiver)
    there.read_all()
    there.collect()
    shared.receiver.channels.flush()
    assert [(message.kind, message.num_seqs) for message in there.control] == [(Kind.TAKEN, 2)]
    shared.deliver(here, shared.sender)
    assert shared.sender.pool.counts().free == NUM_PAGES
    shared.sender.channels.flush()
    assert [(message.kind, message.num_seqs) for message in here.control] == [(Kind.SENT, 2)]
    shared.run_until_idle()
    shared.poll()
    assert shared.landed == {0, 1}
    shared.end()


def test_what_nobody_wants_is_answered_without_being_read(shared: World) -> None:
    shared.receiver.admission.forget(KEYS[1])
    shared.push(KEYS[1])
    shared.sender.channels.flush()
    shared.deliver(shared.links[0][1], shared.receiver)
    mapping = shared.links[0][1].mapping
    assert mapping is not None
    assert not mapping.reads
    shared.run_until_idle()
    shared.poll()
    assert (shared.ended, shared.landed) == ({0: 1}, set())
    shared.end()


def test_payloads_beyond_the_depth_are_announced_and_find_their_receives_posted(world: World) -> None:
    here, there = world.links[0]
    for _ in range(2):
        world.push(KEYS[0])
    world.sender.channels.flush()
    while here.control:
        world.deliver(there, world.receiver)
    assert (len(here.sent), len(there.posted)) == (1, 2)
    world.run_until_idle()
    world.poll()
    assert world.landed == {0, 1}
    world.end()


def test_a_page_received_but_never_confirmed_comes_back_when_its_sender_dies(world: World) -> None:
    _, there = world.links[0]
    world.push(KEYS[0])
    world.deliver(there, world.receiver)
    there.move(*there.matches()[0])
    there.collect()
    assert world.receiver.pool.counts().held == 1
    there.let_go()
    world.tick()
    assert world.receiver.pool.counts().free == NUM_PAGES
    world.end()


def test_the_end_of_an_old_connection_leaves_the_new_one_alone(world: World) -> None:
    world.links[0][0].let_go()  # only the sender knows
    world.tick()
    world.connect()
    world.push(KEYS[0])
    world.run_until_idle()
    world.poll()
    assert world.landed == {0}
    world.end()


@pytest.mark.parametrize(
    "message",
    [
        Control(Kind.SENT, 0, 99),
        Control(Kind.ANNOUNCE, 0, 1),
        Control(Kind.ANSWER, 0, 1),
        Control(Kind.ANNOUNCE, 0, 99, KEYS[0], 0, 1, PAGE_BYTES, page=NUM_PAGES + 1),
    ],
    ids=["sent without announce", "announce of no bytes", "answer to a receiver", "a page that is not shared"],
)
def test_a_receiver_ends_a_connection_that_breaks_the_protocol(shared: World, message: Control) -> None:
    world = shared
    channel = next(iter(world.receiver.channels))
    channel.on_control(message, world.clock)
    lost = [event for event in told_by(world.receiver) if isinstance(event, PeerLost)]
    assert [event.reason for event in lost] == [LostReason.PROTOCOL]
    world.end()


@pytest.mark.parametrize("kind", [Kind.ANSWER, Kind.TAKEN])
def test_a_sender_ends_a_connection_that_answers_or_takes_what_was_not_sent(world: World, kind: Kind) -> None:
    next(iter(world.sender.channels)).on_control(Control(kind, 0, 77), world.clock)
    lost = [event for event in told_by(world.sender) if isinstance(event, PeerLost)]
    assert [event.reason for event in lost] == [LostReason.PROTOCOL]
    world.end()


class ProtocolMachine(RuleBasedStateMachine):
    """Engines, network and clock do anything in any order."""

    shares_pages = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(shares_pages=self.shares_pages)
        for attempt in KEYS[:2]:
            self.world.receiver.admission.expect(attempt)
        self.world.connect()

    @precondition(lambda self: not list(self.world.sender.channels))
    @rule()
    def connect(self) -> None:
        self.world.connect()

    @rule(attempts=st.lists(st.sampled_from(KEYS), min_size=1, max_size=NUM_PAGES))
    def push(self, attempts: list[AttemptKey]) -> None:
        for attempt in attempts:
            self.world.push(attempt)

    @rule(attempt=st.sampled_from(KEYS))
    def expect(self, attempt: AttemptKey) -> None:
        self.world.receiver.admission.expect(attempt)

    @rule(attempt=st.sampled_from(KEYS))
    def forget(self, attempt: AttemptKey) -> None:
        self.world.receiver.admission.forget(attempt)

    @rule(attempt=st.sampled_from(KEYS))
    def drop(self, attempt: AttemptKey) -> None:
        for channel in self.world.sender.channels:
            channel.drop(attempt)

    @rule()
    def poll(self) -> None:
        self.world.poll()

    @precondition(lambda self: self.world.held)
    @rule()
    def scatter(self) -> None:
        self.world.scatter()

    @rule(choices=st.lists(st.integers(0, 5), min_size=1, max_size=8))
    def network(self, choices: list[int]) -> None:
        for choice in choices:
            steps = self.world.steps()
            if steps:
                steps[choice % len(steps)]()

    @rule(index=st.integers(0, 1))
    def one_side_learns_of_a_broken_network(self, index: int) -> None:
        self.world.links[-1][index].let_go()

    @rule(frees_its_pages=st.booleans())
    def sender_gives_up(self, *, frees_its_pages: bool) -> None:
        self.world.sender_gives_up(frees_its_pages=frees_its_pages)

    @rule(seconds=st.sampled_from([0.1, 1.5, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock += seconds
        if seconds < 5.0:  # beyond it both sides fall silent
            self.world.tick()
        else:
            self.world.receiver.admission.tick(self.world.clock)

    @invariant()
    def pools_are_sound(self) -> None:
        assert self.world.sender.pool.check_integrity() == []
        assert self.world.receiver.pool.check_integrity() == []

    @invariant()
    def no_push_ends_twice(self) -> None:
        assert all(count == 1 for count in self.world.ended.values())

    def teardown(self) -> None:
        self.world.end()


class SharedProtocolMachine(ProtocolMachine):
    """The same where the receiver reads payloads by itself."""

    shares_pages = True


TestProtocol = ProtocolMachine.TestCase
TestProtocol.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSharedProtocol = SharedProtocolMachine.TestCase
TestSharedProtocol.settings = TestProtocol.settings
