"""Sums and choices over ranks. One process stands for all: what the others send is there before a rank's launch."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from kernels.rank_pick import BLOCK_ROWS, WORDS, rank_pick
from kernels.rank_pick import places_of as places_of_picks
from kernels.rank_sum import BLOCK, num_tiles, places_of, rank_sum
from kernels.ranks import Mailbox, box_bytes, tell, tell_wide, words_of
from kernels.skinny_gemm import NormOut
from tests.kernels.close import assert_close

SLOTS = 64
PROGRAMS = 2
"""So few that a program has several rows."""


def world(count: int, places: int, itemsize: int, device: torch.device, epoch: int = 0) -> list[Mailbox]:
    """The boxes of `count` ranks on one device, after `epoch` exchanges, kept alive for good."""
    boxes = torch.zeros(count, box_bytes(places, count), dtype=torch.uint8, device=device)
    kind = torch.int16 if itemsize == 2 else torch.int32
    fields = 8 // itemsize
    boxes.view(kind)[:, fields - 1 :: fields] = torch.tensor(epoch).to(kind)  # the words of an exchange before
    addresses = torch.tensor([box.data_ptr() for box in boxes], device=device)
    _ALIVE[addresses] = boxes
    return [
        Mailbox(addresses, torch.full((SLOTS,), epoch, dtype=torch.int32, device=device), places, rank, count, PROGRAMS)
        for rank in range(count)
    ]


_ALIVE: dict[torch.Tensor, torch.Tensor] = {}


@triton.jit
def _send(addresses_ptr, epochs_ptr, values_ptr, places, num_words, RANK: tl.constexpr, COUNT: tl.constexpr,  # noqa: ANN001, ANN202, N803
          BLOCK: tl.constexpr):  # fmt: skip # noqa: N803
    tile = tl.program_id(0)
    values = values_ptr + tile * 3 * BLOCK + tl.arange(0, BLOCK)
    a, b, c = tl.load(values), tl.load(values + BLOCK), tl.load(values + 2 * BLOCK)
    everything = tl.arange(0, BLOCK) >= 0
    epoch = tl.load(epochs_ptr) + 1
    tell(addresses_ptr, epoch, places, tile * num_words * BLOCK, a, b, c, everything, RANK, COUNT)


def others_send(rank: int, boxes: list[Mailbox], values: torch.Tensor) -> None:
    """What the other ranks' launches would send in the next exchange; values: `[count, tiles, 3, block]`."""
    _, tiles, _, block = values.shape
    for box in boxes:
        if box.rank != rank:
            _send[(tiles,)](
                box.addresses, box.epochs, values[box.rank].contiguous(), box.places, words_of(values.element_size()),
                RANK=box.rank, COUNT=box.count, BLOCK=block,
            )  # fmt: skip


@triton.jit
def _send_pick(addresses_ptr, epochs_ptr, said_ptr, places, RANK: tl.constexpr, COUNT: tl.constexpr,  # noqa: ANN001, ANN202, N803
               BLOCK: tl.constexpr, WORDS: tl.constexpr):  # fmt: skip # noqa: N803
    everything = tl.arange(0, BLOCK) >= 0
    epoch = tl.load(epochs_ptr) + 1
    at = tl.program_id(0) * WORDS * BLOCK
    for word in tl.static_range(WORDS):
        values = tl.load(said_ptr + at + word * BLOCK + tl.arange(0, BLOCK))
        tell_wide(addresses_ptr, epoch, places, at + word * BLOCK, values, everything, RANK, COUNT)


def in_tiles(partials: torch.Tensor) -> torch.Tensor:
    """`[count, rows, width]` as sums send them: `[count, tiles, 3, BLOCK]`."""
    count, rows, width = partials.shape
    padded = torch.nn.functional.pad(partials, (0, num_tiles(width) * 3 * BLOCK - width))
    return padded.view(count, rows * num_tiles(width), 3, BLOCK)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("width", [96, 1536])
@pytest.mark.parametrize("epoch", [0, 2**16 - 2, 2**31 - 1])
def test_every_rank_adds_all_partial_sums(
    device: torch.device, dtype: torch.dtype, count: int, width: int, epoch: int
) -> None:
    rows = 3
    boxes = world(count, places_of(4, width, dtype.itemsize), dtype.itemsize, device, epoch)
    weight = torch.rand(width, device=device).to(dtype)
    for exchange in range(3):  # both places of the boxes, and the first one again
        partials = torch.randn(count, rows, width, device=device).to(dtype)
        before = torch.randn(rows, width, device=device).to(dtype)
        expected = before.float()
        for partial in partials:
            expected = expected + partial.float()
        expected = expected.to(dtype)
        results = []
        for box in boxes:
            others_send(box.rank, boxes, in_tiles(partials))
        for box, partial in zip(boxes, partials, strict=True):
            residual, scaled = before.clone(), torch.empty_like(before)
            squares = torch.zeros(num_tiles(width), rows, device=device)
            rank_sum(box, partial, residual, NormOut(weight, scaled, squares))
            assert_close(residual, expected)
            assert_close(scaled, residual.float() * weight.float())
            torch.testing.assert_close(squares.sum(0), residual.float().square().sum(1))
            results.append(residual)
        assert all(torch.equal(residual, results[0]) for residual in results), "to the last bit"
        now = epoch + exchange + 1
        box_now = torch.tensor([now], dtype=torch.int64).to(torch.int32).item()
        assert [int(box.epochs[0]) for box in boxes] == [box_now] * count
        for box in boxes:  # each launch counts for its own programs; here the test's stand for all of them
            box.epochs.fill_(box_now)


def test_what_has_no_room_is_refused(device: torch.device) -> None:
    box, _ = world(2, places_of(16, 8, 4), 4, device)
    with pytest.raises(ValueError, match="there is room for 16"):
        rank_sum(box, torch.zeros(17, 8, device=device), torch.zeros(17, 8, device=device))
    box, _ = world(2, places_of_picks(64), 4, device)
    with pytest.raises(ValueError, match="there is room for 64"):
        rank_pick(box, torch.zeros(65, 8, device=device), torch.zeros(65, dtype=torch.int32, device=device))


def test_the_best_of_all_shares_is_picked_and_ties_go_to_the_lowest_id(device: torch.device) -> None:
    rows, share = 40, 50
    few, many = torch.randint(-3, 4, (rows // 2, 2 * share)), torch.randn(rows // 2, 2 * share)  # ties, and none
    logits = torch.cat((few.float(), many))[torch.randperm(rows)].to(device)
    expected = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert {index // share for index in expected} == {0, 1}
    parts = logits.view(rows, 2, share).transpose(0, 1).contiguous()
    best = torch.stack([torch.stack([(row == row.max()).nonzero()[0, 0] for row in part]) for part in parts]).int()
    ids = best + share * torch.arange(2, dtype=torch.int32, device=device)[:, None]
    for rank, part in enumerate(parts):
        assert picked(rank, part, best[rank], parts.amax(2)[1 - rank], ids[1 - rank]) == expected


def test_ranks_agree_on_a_row_that_is_not_a_number(device: torch.device) -> None:
    logits = torch.full((1, 50), float("nan"), device=device)
    for rank in range(2):
        own, other = (torch.tensor([each], dtype=torch.int32, device=device) for each in (0, (1 - rank) * 50))
        assert picked(rank, logits, own, torch.full((1,), float("-inf"), device=device), other) == [0]


def picked(rank: int, part: torch.Tensor, own: torch.Tensor, value: torch.Tensor, token_id: torch.Tensor) -> list[int]:
    """What `rank` of two picks from its share, best at `own`, when the other one says its best value and its id."""
    rows = len(own)
    boxes = world(2, places_of_picks(rows), 4, part.device)
    other = boxes[1 - rank]
    said = torch.nn.functional.pad(torch.stack((value.view(torch.int32), token_id)), (0, -rows % BLOCK_ROWS))
    tiles = said.unflatten(1, (-1, BLOCK_ROWS)).transpose(0, 1).contiguous()
    _send_pick[(len(tiles),)](
        other.addresses, other.epochs, tiles, other.places, RANK=other.rank, COUNT=2, BLOCK=BLOCK_ROWS, WORDS=WORDS
    )
    rank_pick(boxes[rank], part, own)
    ids: list[int] = own.tolist()
    return ids
