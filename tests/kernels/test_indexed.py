"""Integers picked and placed by index."""

from __future__ import annotations

import pytest
import torch

from kernels.indexed import gather_ints, scatter_ints


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


def test_lengths_must_agree(device: torch.device) -> None:
    two, three = torch.zeros(2, dtype=torch.int32, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="index"):
        gather_ints(three, three, two)
