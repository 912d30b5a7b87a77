"""Sums and choices over ranks. One process stands for all: each rank's launch finds the others already there."""

from __future__ import annotations

import pytest
import torch

from kernels.rank_pick import rank_pick
from kernels.rank_sum import num_tiles, rank_sum
from kernels.ranks import PeerMemory
from kernels.skinny_gemm import NormOut
from tests.kernels.close import assert_close

SLOTS = 64


def world(count: int, num_bytes: int, device: torch.device, epoch: int = 0) -> list[PeerMemory]:
    """The blocks of `count` ranks on one device, after `epoch` meetings."""
    blocks = [torch.zeros(num_bytes + 4 * SLOTS * count, dtype=torch.uint8, device=device) for _ in range(count)]
    addresses = torch.tensor([block.data_ptr() for block in blocks], device=device)
    for block in blocks:
        block[num_bytes:].view(torch.int32).fill_(epoch)
    return [
        PeerMemory(block, addresses, torch.full((SLOTS,), epoch, dtype=torch.int32, device=device), num_bytes, r, count)
        for r, block in enumerate(blocks)
    ]


def others_are_here(memory: PeerMemory) -> None:
    """What the other ranks would have written at the next meeting."""
    memory.own[memory.flags_at :].view(torch.int32).add_(1)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("width", [96, 1536])
@pytest.mark.parametrize("epoch", [0, 2**31 - 1])
def test_every_rank_adds_all_partial_sums(
    device: torch.device, dtype: torch.dtype, count: int, width: int, epoch: int
) -> None:
    rows, at = 3, 256
    size = rows * width * dtype.itemsize
    ranks = world(count, at + size, device, epoch)
    partials = torch.randn(count, rows, width, device=device).to(dtype)
    before = torch.randn(rows, width, device=device).to(dtype)
    weight = torch.rand(width, device=device).to(dtype)
    for memory, partial in zip(ranks, partials, strict=True):
        memory.own[at : at + size].view(dtype).copy_(partial.flatten())
    expected = before.float()
    for partial in partials:
        expected = expected + partial.float()
    expected = expected.to(dtype)
    results = []
    for memory in ranks:
        others_are_here(memory)
        residual, scaled = before.clone(), torch.empty_like(before)
        squares = torch.zeros(num_tiles(width), rows, device=device)
        rank_sum(memory, at, residual, NormOut(weight, scaled, squares))
        assert_close(residual, expected)
        assert_close(scaled, residual.float() * weight.float())
        torch.testing.assert_close(squares.sum(0), residual.float().square().sum(1))
        results.append(residual)
    assert all(torch.equal(residual, results[0]) for residual in results), "to the last bit"
    assert [flags_of(memory) for memory in ranks] == [flags_of(ranks[0])] * count


def flags_of(memory: PeerMemory) -> list[int]:
    met = memory.epochs.tolist()
    return [met[0], met[-1]]


def test_more_programs_than_can_meet_are_refused(device: torch.device) -> None:
    (memory, _) = world(2, 0, device)
    with pytest.raises(ValueError, match="can meet"):
        rank_sum(memory, 0, torch.zeros(SLOTS + 1, 8, device=device))


def test_the_best_of_all_shares_is_picked_and_ties_go_to_the_lowest_id(device: torch.device) -> None:
    rows, share, max_rows = 40, 50, 48
    logits = torch.randint(-3, 4, (rows, 2 * share), device=device).float()
    expected = torch.tensor([int((row == row.max()).nonzero()[0]) for row in logits])
    ranks = world(2, 8 * max_rows, device)
    found = []
    for memory in ranks:
        part = logits[:, memory.rank * share : (memory.rank + 1) * share].contiguous()
        best = torch.stack([(row == row.max()).nonzero()[0, 0] for row in part])
        memory.own[: 4 * rows].view(torch.float32).copy_(part.max(1).values)
        memory.own[4 * max_rows : 4 * (max_rows + rows)].view(torch.int32).copy_(best + memory.rank * share)
        found.append((part, best.int()))
    for memory, (part, ids) in zip(ranks, found, strict=True):
        others_are_here(memory)
        rank_pick(memory, 0, max_rows, part, ids)
        assert ids.tolist() == expected.tolist()
