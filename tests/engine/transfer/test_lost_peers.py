"""Peers that die, hang, close or come back: two real processes over UCX on loopback."""

import os
import select
import signal
import time
from typing import Any

import pytest

from services.engine.transfer.events import (
    LostReason,
    PeerAddress,
    PeerLost,
    PeerProven,
    Pushed,
    PushOutcome,
    TransferError,
)
from tests.engine.transfer.driver import NUM_PAGES, PAGE_BYTES, Peer, Sender, closing, connected, key
from tests.ports import free_ports

SILENCE_S = 60.0
"""By which a loss is noticed at the latest: an endpoint that tells of it sooner has noticed by itself."""
CLOSED_WITHIN_S = 20.0
BIG_PAGE_BYTES = 8 * 1024 * 1024

Settings = dict[str, Any]
each_way = pytest.mark.parametrize(
    "settings", [{}, {"ucx_options": {"TLS": "tcp"}}, {"device": "shared"}], ids=["any-lane", "tcp", "shared"]
)


def push_all(sender: Sender, receiver: Peer, attempt: int) -> None:
    for start in range(NUM_PAGES):
        sender.push(receiver, key(attempt), start, seed=start)


@each_way
def test_a_killed_receiver_is_noticed_and_no_page_is_lost(settings: Settings) -> None:
    receiver = Peer("receiver", "decode-1", page_bytes=BIG_PAGE_BYTES, **settings)
    sender = connected(receiver, page_bytes=BIG_PAGE_BYTES, silence_s=SILENCE_S, **settings)
    with closing(sender, receiver):
        receiver.expect(key(1))
        receiver.do("hold", on=True)
        push_all(sender, receiver, 1)
        receiver.kill()
        assert sender.wait_for(PeerLost)[0].reason is LostReason.ENDPOINT
        assert len(sender.wait_for(Pushed, NUM_PAGES)) == NUM_PAGES
        sender.wait_for_pages()


@each_way
def test_a_killed_sender_is_noticed_and_no_page_is_lost(settings: Settings) -> None:
    receiver = Peer("receiver", "decode-1", page_bytes=BIG_PAGE_BYTES, silence_s=SILENCE_S, **settings)
    sender = Peer("sender", "prefill-1", page_bytes=BIG_PAGE_BYTES, **settings)
    with closing(receiver, sender):
        address = receiver.address
        sender.do("connect", address={name: getattr(address, name) for name in PeerAddress.__slots__})
        sender.wait("proven")
        receiver.expect(key(1))
        for start in range(NUM_PAGES):
            sender.do("push", peer_id=receiver.peer_id, key=[key(1).request_id, 1], start=start, seed=start)
        receiver.wait("received")
        sender.kill()
        lost = receiver.wait("lost")
        assert (lost["incarnation"], lost["reason"]) == ("prefill-1", "endpoint_failed")
        receiver.wait_for_pages(NUM_PAGES)


def test_a_stopped_receiver_is_noticed_by_its_silence() -> None:
    receiver = Peer("receiver", "decode-1")
    sender = connected(receiver, silence_s=2.5)
    with closing(sender, receiver):
        os.kill(receiver.process.pid, signal.SIGSTOP)
        push_all(sender, receiver, 1)
        assert sender.wait_for(PeerLost)[0].reason is LostReason.SILENT
        assert {event.outcome for event in sender.wait_for(Pushed, NUM_PAGES)} == {PushOutcome.LOST}
        sender.wait_for_pages()


@pytest.mark.parametrize("device", ["cpu", "shared"])
def test_a_quiet_connection_outlives_the_silence_that_ends_a_lost_one(device: str) -> None:
    # A machine that stands still makes a peer silent that is not: then longer silences are tried.
    assert any(outlives(silence_s, device) for silence_s in (1.0, 4.0, 16.0))


def outlives(silence_s: float, device: str) -> bool:
    """Whether a connection on which nothing is sent carries a payload after two such silences."""
    settings: Settings = {"silence_s": silence_s, "heartbeat_s": silence_s / 6, "device": device}
    receiver = Peer("receiver", "decode-1", **settings)
    sender = connected(receiver, **settings)
    with closing(sender, receiver):
        try:
            sender.wait_for(PeerLost, timeout_s=2 * silence_s)
        except TimeoutError:
            receiver.expect(key(1))
            sender.push(receiver, key(1), 0, seed=1)
            return sender.wait_for(Pushed)[0].outcome is PushOutcome.LANDED
    return False


def test_a_push_past_its_deadline_closes_the_connection() -> None:
    receiver = Peer("receiver", "decode-1", num_pages=4, credit=8)
    sender = connected(receiver, push_timeout_s=0.5)
    with closing(sender, receiver):
        receiver.expect(key(1))
        receiver.do("hold", on=True)  # 4 pages stay there; the others' receives are never posted
        push_all(sender, receiver, 1)
        assert sender.wait_for(PeerLost)[0].reason is LostReason.DEADLINE
        outcomes = [event.outcome for event in sender.wait_for(Pushed, NUM_PAGES)]
        assert outcomes.count(PushOutcome.LOST) >= NUM_PAGES - 4  # more where the machine was slow to take the first
        sender.wait_for_pages()
        receiver.wait("lost")
        receiver.do("hold", on=False)
        receiver.wait_for_pages(4)


def test_a_new_incarnation_on_the_same_port_is_proven_and_the_old_one_is_refused() -> None:
    first = Peer("receiver", "decode-1", listen_port=free_ports(1)[0])
    sender = connected(first)
    with closing(sender, first):
        first.kill()
        sender.wait_for(PeerLost)
        second = Peer("receiver", "decode-2", listen_port=first.port)
        with closing(second):
            sender.transfer.connect(first.address)
            assert sender.wait_for(PeerLost, 2)[1].reason is LostReason.REFUSED
            sender.transfer.connect(second.address)
            assert sender.wait_for(PeerProven, 2)[1].incarnation == "decode-2"
            second.expect(key(1))
            sender.push(second, key(1), 0, seed=1)
            assert sender.wait_for(Pushed)[0].outcome is PushOutcome.LANDED


def test_closing_with_payloads_in_flight_ends_soon_with_every_page_back() -> None:
    receiver = Peer("receiver", "decode-1", num_pages=2, credit=8, page_bytes=BIG_PAGE_BYTES)
    sender = connected(receiver, page_bytes=BIG_PAGE_BYTES)
    with closing(receiver, sender):
        receiver.expect(key(1))
        receiver.do("hold", on=True)
        push_all(sender, receiver, 1)
        started_at = time.monotonic()
        sender.transfer.close()
        assert time.monotonic() - started_at < CLOSED_WITHIN_S, "the peer holds them for ever"
        assert sender.pool.counts().free == NUM_PAGES
        assert len([event for event in sender.transfer.poll() if isinstance(event, Pushed)]) == NUM_PAGES
        receiver.do("hold", on=False)
        receiver.wait("lost")
        receiver.wait_for_pages(2)


def test_a_receiver_that_closes_tells_its_senders_and_keeps_no_page() -> None:
    receiver = Peer("receiver", "decode-1")
    sender = connected(receiver)
    with closing(sender, receiver):
        push_all(sender, receiver, 1)
        receiver.do("close")
        assert receiver.wait("closed") == {"event": "closed", "free": NUM_PAGES, "problems": []}
        assert sender.wait_for(PeerLost)[0].reason in {LostReason.CLOSED, LostReason.ENDPOINT}
        sender.wait_for(Pushed, NUM_PAGES)
        sender.wait_for_pages()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_transfer_thread_wakes_the_loop_and_ends_it() -> None:
    sender = Sender()
    sender.transfer._commands.put(lambda: exit("the thread dies of this"))
    assert select.select([sender.transfer.wake_fd], [], [], 60)[0]
    sender.transfer._thread._thread.join(60)
    with pytest.raises(TransferError, match="died"):
        sender.transfer.poll()


def test_two_senders_share_one_receiver() -> None:
    receiver = Peer("receiver", "decode-1", num_pages=3)
    one = connected(receiver, peer_id="prefill-a")
    two = connected(receiver, peer_id="prefill-b")
    with closing(one, two, receiver):
        for attempt, sender in ((1, one), (2, two)):
            receiver.expect(key(attempt))
            push_all(sender, receiver, attempt)
        for sender in (one, two):
            assert {event.outcome for event in sender.wait_for(Pushed, NUM_PAGES)} == {PushOutcome.LANDED}
        assert receiver.report()["num_bytes"] == PAGE_BYTES * (2 * NUM_PAGES + 2 * 5)  # five test pages each
