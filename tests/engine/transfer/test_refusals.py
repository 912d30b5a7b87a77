"""Peers that are not the right ones, or lie, or go and come back: one receiver and its senders over UCX on loopback."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from services.engine.transfer.events import LostReason, PeerAddress, PeerLost, PeerProven, Pushed, PushOutcome
from services.engine.transfer.heads import HeadRange
from services.engine.transfer.lanes import Lane
from services.engine.transfer.page_memory import Buffer, HostMemory
from tests.engine.transfer.driver import NUM_PAGES, Peer, Sender, closing, connected, key
from tests.ports import free_ports


@pytest.fixture(scope="module")
def receiver() -> Iterator[Peer]:
    peer = Peer("receiver", "decode-1")
    with closing(peer):
        yield peer


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"incarnation": "an-old-self"}, "another start of the process"),
        ({"group": "another-group"}, "groups differ"),
    ],
)
def test_another_self_or_group_is_refused(receiver: Peer, wrong: dict[str, Any], reason: str) -> None:
    sender = Sender()
    with closing(sender):
        sender.transfer.connect(replace(receiver.address, **wrong))
        lost = sender.wait_for(PeerLost)[0]
        assert lost.reason is LostReason.REFUSED
        assert reason in lost.detail
        sender.transfer.connect(receiver.address)  # the right one is still welcome
        sender.wait_for(PeerProven)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"heads": HeadRange(3, 1)}, "no KV head"), ({"page_bytes": 4096}, "sizes of the transfer pages differ")],
)
def test_other_heads_or_page_sizes_is_refused(receiver: Peer, changes: dict[str, Any], reason: str) -> None:
    sender = Sender(**changes)
    with closing(sender):
        sender.transfer.connect(receiver.address)
        lost = sender.wait_for(PeerLost)[0]
        assert (lost.reason, reason in lost.detail) == (LostReason.REFUSED, True)


def test_a_slower_lane_than_required_is_refused(receiver: Peer) -> None:
    sender = Sender(require_lane=Lane.RDMA)
    with closing(sender):
        sender.transfer.connect(receiver.address)
        lost = sender.wait_for(PeerLost)[0]
        assert (lost.reason, "rdma is required" in lost.detail) == (LostReason.LANE, True)


class Liar(HostMemory):
    """Its checksums are wrong while `is_lying`."""

    is_lying = False

    def checksum(self, buffer: Buffer) -> int:
        return super().checksum(buffer) ^ self.is_lying


def test_a_test_page_that_arrives_changed_proves_nothing(receiver: Peer) -> None:
    memory = Liar()
    memory.is_lying = True
    sender = Sender(memory=memory)
    with closing(sender):
        sender.transfer.connect(receiver.address)
        assert sender.wait_for(PeerLost)[0].reason is LostReason.PROOF


def test_a_payload_that_arrives_changed_is_reported_on_both_sides_and_never_given_out(receiver: Peer) -> None:
    memory = Liar()
    sender = connected(receiver, memory=memory, checksum=True)
    with closing(sender):
        receiver.expect(key(1))
        memory.is_lying = True
        sender.push(receiver, key(1), 0, seed=1)
        assert sender.wait_for(Pushed)[0].outcome is PushOutcome.CORRUPT
        assert receiver.wait("damaged")["key"] == [key(1).request_id, 1]
        receiver.wait_for_pages(NUM_PAGES)


def test_a_stranger_on_the_port_does_no_harm(receiver: Peer) -> None:
    sender = Sender()
    with closing(sender):
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4096)):
            with socket.create_connection(("127.0.0.1", receiver.port)) as stranger:
                stranger.sendall(noise)
        sender.transfer.connect(receiver.address)
        sender.wait_for(PeerProven)


def test_connecting_to_nobody_ends_in_peer_lost() -> None:
    sender = Sender(connect_timeout_s=1.0)
    with closing(sender):
        sender.transfer.connect(PeerAddress("nobody", "127.0.0.1", free_ports(1)[0], "x", "g"))
        sender.transfer.connect(PeerAddress("nowhere", "no.such.host.invalid", 1, "x", "g"))
        lost = sender.wait_for(PeerLost, 2)
        assert {event.peer_id for event in lost} == {"nobody", "nowhere"}
        assert {event.reason for event in lost} == {LostReason.CONNECT}


def test_a_listener_that_is_no_receiver_is_given_up() -> None:
    sender = Sender(connect_timeout_s=0.5)
    with socket.socket() as listener, closing(sender):
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender.transfer.connect(PeerAddress("mute", "127.0.0.1", listener.getsockname()[1], "x", "g"))
        assert sender.wait_for(PeerLost)[0].reason is LostReason.CONNECT


def test_disconnect_ends_one_peer_and_connect_brings_it_back(receiver: Peer) -> None:
    sender = connected(receiver)
    with closing(sender):
        sender.transfer.disconnect(receiver.peer_id)
        assert sender.wait_for(PeerLost)[0].reason is LostReason.CLOSED
        sender.transfer.connect(receiver.address)
        sender.wait_for(PeerProven, 2)


def test_a_restarted_sender_replaces_its_old_connection_and_not_the_other_way_round(receiver: Peer) -> None:
    old = connected(receiver, incarnation="before")
    new = connected(receiver, incarnation="after")
    with closing(old, new):
        while (lost := receiver.wait("lost"))["incarnation"] != "before":  # those of other tests
            pass
        assert lost["reason"] == "replaced"
        old.wait_for(PeerLost)
        receiver.expect(key(1))
        new.push(receiver, key(1), 0, seed=1)
        assert new.wait_for(Pushed)[0].outcome is PushOutcome.LANDED
