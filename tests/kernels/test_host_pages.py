"""KV from the pool to host memory and back, through the staging pages of the cuda backend."""

from __future__ import annotations

import pytest
import torch

from services.engine.backends.cuda.host_pages import PinnedPages


@pytest.mark.parametrize("skipped", [0, 1])
def test_kv_goes_to_host_memory_and_back_to_other_slots(device: torch.device, skipped: int) -> None:
    """More pages than are staged, the last one short; back from the start or from the middle of a page on."""
    pool = torch.randn(2, 61, 4, 8, device=device, dtype=torch.bfloat16)
    host = PinnedPages(pool, num_pages=9, page_tokens=2)
    slots = torch.randperm(30)[:17].int()
    expected = pool[:, slots.long()].clone()
    host.keep(slots.numpy(), [*range(8, -1, -1)])
    pool[:, :30] = 0  # whoever has the slots next
    back, first = torch.arange(30, 47, dtype=torch.int32), skipped
    for index, page in enumerate(range(8, -1, -1)):
        end = min(2 * index + 2, 17)
        host.fetch(page, end - 2 * index).put(back[first:end].numpy(), skip=first - 2 * index)
        first = end
    assert torch.equal(pool[:, back[skipped:].long()], expected[:, skipped:])


def test_what_was_fetched_may_be_forgotten(device: torch.device) -> None:
    pool = torch.randn(1, 9, 2, 8, device=device)
    host = PinnedPages(pool, num_pages=2, page_tokens=4)
    before = pool.clone()
    host.keep(torch.arange(4, dtype=torch.int32).numpy(), [1])
    for _ in range(3 * host.fetches_at_once):
        host.fetch(1, 4)
    host.fetch(1, 4).put(torch.arange(4, 8, dtype=torch.int32).numpy(), skip=0)
    assert torch.equal(pool[:, 4:8], before[:, :4])
