"""Integers picked and placed by index."""

from __future__ import annotations

import pytest
import torch

from kernels.indexed import copy_ints, gather_ints, publish_ids, scatter_ints
from services.engine.backends.cuda.clock import pinned


@pytest.mark.parametrize("n", [0, 1, 5, 600])
def test_gather_and_scatter_equal_indexing(device: torch.device, n: int) -> None:
    source = torch.randint(0, 9999, (50, 20), dtype=torch.int32, device=device)
    index = torch.randperm(1000, device=device)[:n].int()
    out = torch.full((n,), -1, dtype=torch.int32, device=device)
    gather_ints(source, index, out)
    assert torch.equal(out, source.flatten()[index.long()])
    back = torch.zeros_like(source)
    scatter_ints(out, index, back)
    expected = torch.zeros_like(source.flatten())
    expected[index.long()] = out
    assert torch.equal(back.flatten(), expected)


@pytest.mark.parametrize("n", [1, 5, 600])
def test_ids_reach_the_rows_and_the_host(device: torch.device, n: int) -> None:
    ids = torch.randint(0, 9999, (n,), dtype=torch.int32, device=device)
    rows = torch.randperm(1000, device=device)[:n].int()
    next_ids = torch.full((1000,), -1, dtype=torch.int32, device=device)
    block = pinned(n + 1, device)
    address = torch.tensor([block.data_ptr()], device=device)
    publish_ids(ids, rows, next_ids, address)
    expected = torch.full_like(next_ids, -1)
    expected[rows.long()] = ids
    assert torch.equal(next_ids, expected)  # waits for the device
    assert block.tolist() == [*ids.tolist(), 0]


@pytest.mark.parametrize("n", [1, 1024, 5000])
def test_pinned_integers_reach_the_device(device: torch.device, n: int) -> None:
    block = pinned(n, device)
    block.copy_(torch.arange(n))
    out = torch.zeros(n + 1, dtype=torch.int32, device=device)
    copy_ints(block, out[:n])
    assert out.tolist() == [*range(n), 0]


def test_lengths_must_agree(device: torch.device) -> None:
    two, three = torch.zeros(2, dtype=torch.int32, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="index"):
        gather_ints(three, three, two)
