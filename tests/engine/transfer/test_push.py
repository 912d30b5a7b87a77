"""Payloads between two real processes over UCX on loopback."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from services.engine.transfer.events import PeerProven, Pushed, PushOutcome
from services.engine.transfer.page_memory import HostMemory, pattern
from tests.engine.transfer.driver import PAGE_BYTES, TIMEOUT_S, Peer, Sender, closing, connected, key


@pytest.fixture(scope="module", params=["cpu", "shared"])
def device(request: pytest.FixtureRequest) -> str:
    """Whether UCX moves payloads, or the receiver reads them out of the sender's pages, which here are files."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def receiver(device: str) -> Iterator[Peer]:
    peer = Peer("receiver", "decode-1", credit=3, early_grace_s=0.2, device=device)
    with closing(peer):
        yield peer


@pytest.fixture
def sender(receiver: Peer, device: str) -> Iterator[Sender]:
    part = Sender(checksum=True, device=device)
    with closing(part):
        part.transfer.connect(receiver.address)
        part.wait_for(PeerProven)
        receiver.wait("proven")
        yield part


def crc(seed: int, num_bytes: int = PAGE_BYTES) -> int:
    return HostMemory().checksum(pattern(num_bytes, seed))


def test_both_sides_report_the_proven_pair_with_its_lane(receiver: Peer) -> None:
    part = Sender()
    with closing(part):
        part.transfer.connect(receiver.address)
        proven = part.wait_for(PeerProven)[0]
        assert receiver.wait("proven") == {"event": "proven", "peer": "a-prefill", "lane": proven.lane}
        assert (proven.peer_id, proven.incarnation) == (receiver.peer_id, receiver.incarnation)
        assert proven.gb_per_s > 0


@pytest.mark.parametrize("num_bytes", [1, 4095, 8192, 65_537, PAGE_BYTES])
def test_bytes_arrive_as_they_were_sent(receiver: Peer, sender: Sender, num_bytes: int) -> None:
    receiver.expect(key(1))
    sender.push(receiver, key(1), start=7, seed=num_bytes, num_bytes=num_bytes)
    told = receiver.wait("received")
    assert (told["start"], told["crc"]) == (7, crc(num_bytes, num_bytes))
    assert sender.wait_for(Pushed)[0].outcome is PushOutcome.LANDED


def test_many_attempts_interleave_without_mixing_their_bytes(receiver: Peer, sender: Sender) -> None:
    attempts = [key(100 + number) for number in range(6)]
    for attempt in attempts:
        receiver.expect(attempt)
    for start in range(8):
        for number, attempt in enumerate(attempts):
            sender.push(receiver, attempt, start, seed=number * 1000 + start)
    told = [receiver.wait("received") for _ in range(48)]
    seen = {(event["key"][0], event["start"]): event["crc"] for event in told}
    assert seen == {
        (attempt.request_id, start): crc(number * 1000 + start)
        for number, attempt in enumerate(attempts)
        for start in range(8)
    }
    assert {event.outcome for event in sender.wait_for(Pushed, 48)} == {PushOutcome.LANDED}


def test_a_receiver_that_keeps_its_pages_holds_the_sender_back_and_loses_nothing(
    receiver: Peer, sender: Sender
) -> None:
    receiver.do("hold", on=True)
    receiver.expect(key(2))
    for start in range(8):
        sender.push(receiver, key(2), start, seed=start)
    first = [receiver.wait("received") for _ in range(8)]  # all its pages
    for start in range(8, 12):
        sender.push(receiver, key(2), start, seed=start)
    assert receiver.report()["free"] == 0
    sender.wait_for(Pushed, 8)
    assert len(sender.of(Pushed)) == 8
    receiver.do("hold", on=False)
    rest = [receiver.wait("received") for _ in range(4)]
    assert [event["crc"] for event in first + rest] == [crc(start) for start in range(12)]
    sender.wait_for(Pushed, 12)
    assert receiver.report()["free"] == 8


def test_an_unknown_attempt_is_received_and_answered_as_discarded(receiver: Peer, sender: Sender) -> None:
    sender.push(receiver, key(3), 0, seed=1)
    assert sender.wait_for(Pushed)[0].outcome is PushOutcome.DISCARDED
    assert receiver.report()["free"] == 8


def test_an_early_payload_waits_for_its_attempt(device: str) -> None:
    receiver = Peer("receiver", "decode-2", early_grace_s=TIMEOUT_S, device=device)
    sender = connected(receiver, checksum=True, device=device)
    with closing(sender, receiver):
        sender.push(receiver, key(4), 0, seed=4)
        receiver.expect(key(4))
        assert receiver.wait("received")["crc"] == crc(4)
        assert sender.wait_for(Pushed)[0].outcome is PushOutcome.LANDED


def test_nothing_of_a_forgotten_attempt_is_given_out(receiver: Peer, sender: Sender) -> None:
    receiver.expect(key(5))
    receiver.do("forget", key=[key(5).request_id, 1])
    receiver.report()  # the process has seen it
    receiver.expect(key(6))
    for start in range(6):
        sender.push(receiver, key(5), start, seed=start)
    sender.push(receiver, key(6), 0, seed=6)
    told = receiver.wait("received")
    assert told["key"][0] == key(6).request_id
    outcomes = [event.outcome for event in sender.wait_for(Pushed, 7)]
    assert outcomes.count(PushOutcome.DISCARDED) == 6


def test_dropping_an_attempt_spares_what_is_in_flight(receiver: Peer, sender: Sender) -> None:
    receiver.do("hold", on=True)
    receiver.expect(key(7))
    for start in range(8):
        sender.push(receiver, key(7), start, seed=start)  # credit 3: the rest waits in the sender
    sender.transfer.drop(key(7))
    receiver.do("hold", on=False)
    outcomes = [event.outcome for event in sender.wait_for(Pushed, 8)]
    assert set(outcomes) <= {PushOutcome.LANDED, PushOutcome.DROPPED}
    assert outcomes.count(PushOutcome.LANDED) >= 1
    sender.wait_for_pages()


def test_a_page_that_the_device_still_writes_is_neither_sent_nor_freed(receiver: Peer, sender: Sender) -> None:
    receiver.expect(key(11))
    filled, asked = threading.Event(), threading.Event()

    def is_filled() -> bool:
        asked.set()
        return filled.is_set()

    pages = [sender.pool.acquire() for _ in range(2)]
    for start, page in enumerate(pages):
        assert page is not None
        sender.transfer.push(receiver.peer_id, key(11 + start), start, 1, page, PAGE_BYTES, is_filled)
    sender.transfer.drop(key(12))
    sender.push(receiver, key(11), 2, seed=2)  # behind them: pages are filled in order
    assert sender.pool.counts().free == len(sender.pool) - 3
    for page in pages:
        assert page is not None
        sender.memory.fill(page.buffer, seed=1)
    for _ in range(2):  # the thread has seen the drop before it asks for the second time
        asked.clear()
        assert asked.wait(TIMEOUT_S)
    filled.set()
    arrived: list[int] = []
    while len(arrived) < 2:
        told = receiver.wait("received")
        arrived += [told["crc"]] if told["key"][0] == key(11).request_id else []  # older tests left theirs unread
    assert arrived == [crc(1), crc(2)]
    outcomes = {event.token_start: event.outcome for event in sender.wait_for(Pushed, 3)}
    assert outcomes == {0: PushOutcome.LANDED, 1: PushOutcome.DROPPED, 2: PushOutcome.LANDED}
    sender.wait_for_pages()


def test_push_refuses_what_cannot_be_sent(receiver: Peer, sender: Sender) -> None:
    page = sender.pool.acquire()
    assert page is not None
    with pytest.raises(ValueError, match="num_bytes"):
        sender.transfer.push(receiver.peer_id, key(8), 0, 1, page, PAGE_BYTES + 1)
    with pytest.raises(ValueError, match="hexadecimal"):
        sender.transfer.push(receiver.peer_id, type(key(8))("not-hex", 1), 0, 1, page, 1)
    page.release()


def test_a_push_to_a_peer_that_is_not_connected_is_lost_and_gives_its_page_back(sender: Sender) -> None:
    page = sender.pool.acquire()
    assert page is not None
    sender.transfer.push("nobody", key(9), 0, 1, page, 1)
    assert sender.wait_for(Pushed)[0].outcome is PushOutcome.LOST
    assert sender.pool.counts().free == len(sender.pool)


def test_figures_add_up(receiver: Peer, sender: Sender) -> None:
    receiver.expect(key(10))
    for start in range(5):
        sender.push(receiver, key(10), start, seed=start)
    sender.wait_for(Pushed, 5)
    stats = sender.transfer.stats
    peer: Any = stats.peers[receiver.peer_id]
    assert (stats.num_bytes, stats.num_messages, stats.outcomes) == (5 * PAGE_BYTES, 5, {"landed": 5})
    assert (peer.num_bytes, peer.in_flight) == (5 * PAGE_BYTES, 0)
    assert 0 < peer.busy_s < 10
