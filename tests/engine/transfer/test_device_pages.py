"""Device pages between two processes on one card: the same transfer, over cuda_ipc."""

import pytest
import torch

from services.engine.transfer.device_memory import DeviceMemory
from services.engine.transfer.events import LostReason, PeerLost, PeerProven, Pushed, PushOutcome
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


def pair() -> tuple[Peer, Sender]:
    receiver = Peer("receiver", "decode-1", device="cuda:0", page_bytes=PAGE_BYTES)
    return receiver, connected(receiver, device="cuda:0", page_bytes=PAGE_BYTES)


@pytest.mark.gpu
@needs_device
def test_device_pages_cross_by_cuda_ipc_unchanged() -> None:
    receiver, sender = pair()
    with closing(sender, receiver):
        assert sender.of(PeerProven)[0].lane == "cuda_ipc"
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
