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


@pytest.mark.parametrize("first", [0, 1])
def test_a_page_of_some_heads_takes_only_them(device: torch.device, first: int) -> None:
    kv = torch.randn(3, 20, 6, 24, device=device)
    slots = torch.randperm(19)[:7].int().to(device)
    page = torch.full((3, 7, 4, 24), float("nan"), device=device)
    gather_page(kv, slots, page, first, programs=2)
    heads = [first, first + 1, 3 + first, 4 + first]
    assert torch.equal(page, kv[:, slots.long()][:, :, heads])
    other = torch.zeros_like(kv)
    scatter_page(page[:, 2:], slots[2:], other, first)
    assert torch.equal(other[:, slots.long()][:, 2:, heads], page[:, 2:])
    assert other.count_nonzero() == page[:, 2:].count_nonzero()
