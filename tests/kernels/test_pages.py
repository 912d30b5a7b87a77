"""KV between slots and transfer pages."""

from __future__ import annotations

import pytest
import torch

from kernels.pages import gather_page, scatter_page


@pytest.mark.parametrize("n", [1, 5, 13])
def test_a_page_round_trip_moves_exactly_the_named_slots(device: torch.device, dtype: torch.dtype, n: int) -> None:
    kv = torch.randn(3, 20, 4, 24, device=device).to(dtype)
    source, target = torch.randperm(19)[:n].int().to(device), torch.randperm(19)[:n].int().to(device)
    page = torch.full((3, n, 4, 24), float("nan"), device=device, dtype=dtype)
    gather_page(kv, source, page, programs=2)
    assert torch.equal(page, kv[:, source.long()])
    other = torch.zeros_like(kv)
    scatter_page(page, target, other, programs=3)
    assert torch.equal(other[:, target.long()], page)
    assert other.count_nonzero() == page.count_nonzero(), "no other slot is written"


def test_a_page_of_another_dtype_is_refused(device: torch.device) -> None:
    kv = torch.zeros(1, 4, 2, 8, device=device)
    slots = torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="dtype"):
        gather_page(kv, slots, torch.zeros(1, 2, 2, 8, device=device, dtype=torch.float16))
