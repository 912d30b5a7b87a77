"""Device pages between two processes on one card: the same transfer, over cuda_ipc."""

import pytest
import torch

from services.engine.transfer.device_memory import DeviceMemory
from services.engine.transfer.events import LostReason, PeerAddress, PeerLost, PeerProven, Pushed, PushOutcome
from services.engine.transfer.page_memory import HostMemory, pattern
from tests.engine.transfer.driver import NUM_PAGES, Peer, Sender, closing, connected, key

PAGE_BYTES = 16 * 1024 * 1024

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_expandable_segments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments:True")
    with pytest.raises(ValueError, match="expandable"):
        DeviceMemory("cuda:0")


def test_only_a_cuda_device_has_device_pages() -> None:
    with pytest.raises(ValueError, match="CUDA"):
        DeviceMemory("cpu")


def pair(*, may_map: bool = True) -> tuple[Peer, Sender]:
    receiver = Peer("receiver", "decode-1", device="cuda:0", page_bytes=PAGE_BYTES, may_map=may_map)
    return receiver, connected(receiver, device="cuda:0", page_bytes=PAGE_BYTES)


@pytest.mark.gpu
@needs_device
@pytest.mark.parametrize("may_map", [True, False], ids=["mapped", "ucx"])
def test_device_pages_cross_by_cuda_ipc_unchanged(may_map: bool) -> None:
    receiver, sender = pair(may_map=may_map)
    with closing(sender, receiver):
        assert sender.of(PeerProven)[0].lane == "cuda_ipc"
        assert sender.transfer._side._by_peer[receiver.peer_id].channel.link.is_lending == may_map
        receiver.expect(key(1))
        for start in range(3 * NUM_PAGES):
            sender.push(receiver, key(1), start, seed=start)
        crcs = {told["start"]: told["crc"] for told in (receiver.wait("received") for _ in range(3 * NUM_PAGES))}
        assert crcs == {start: HostMemory().checksum(pattern(PAGE_BYTES, start)) for start in range(3 * NUM_PAGES)}
        assert {event.outcome for event in sender.wait_for(Pushed, 3 * NUM_PAGES)} == {PushOutcome.LANDED}


@pytest.mark.gpu
@needs_device
def test_a_killed_receiver_of_device_pages_is_noticed_and_no_page_is_lost() -> None:
    receiver, sender = pair()
    with closing(sender, receiver):
        receiver.expect(key(1))
        receiver.do("hold", on=True)
        for start in range(NUM_PAGES):
            sender.push(receiver, key(1), start, seed=start)
        receiver.kill()
        assert sender.wait_for(PeerLost, timeout_s=2.0)[0].reason is LostReason.ENDPOINT
        sender.wait_for(Pushed, NUM_PAGES)
        sender.wait_for_pages()


@pytest.mark.gpu
@needs_device
def test_a_sender_killed_while_its_pages_are_read_costs_no_page_and_another_one_is_served() -> None:
    receiver = Peer("receiver", "decode-1", device="cuda:0", page_bytes=PAGE_BYTES)
    first, second = (Peer("sender", name, device="cuda:0", page_bytes=PAGE_BYTES) for name in ("one", "two"))
    with closing(receiver, first, second):
        receiver.expect(key(1))
        start_pushing(first, receiver)
        receiver.wait("received")
        first.kill()
        receiver.wait("lost")
        receiver.wait_for_pages(NUM_PAGES)
        start_pushing(second, receiver)
        for _ in range(NUM_PAGES):
            assert second.wait("pushed")["outcome"] == "landed"


def start_pushing(sender: Peer, receiver: Peer) -> None:
    """Prove the pair, then push every page."""
    address = receiver.address
    sender.do("connect", address={name: getattr(address, name) for name in PeerAddress.__slots__})
    sender.wait("proven")
    for start in range(NUM_PAGES):
        sender.do("push", peer_id=receiver.peer_id, key=[key(1).request_id, 1], start=start, seed=start)
