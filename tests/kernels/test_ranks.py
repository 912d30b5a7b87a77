"""Sums and choices over ranks. One process stands for all: what the others send is there before a rank's launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from kernels.launch import is_hopper
from kernels.rank_pick import BLOCK_ROWS, WORDS, rank_pick
from kernels.rank_pick import places_of as places_of_picks
from kernels.rank_sum import BLOCK, num_tiles, places_of, rank_sum
from kernels.ranks import (
    Mailbox,
    box_addresses,
    box_bytes,
    pack_tile,
    tell,
    tell_tile,
    tell_wide,
    tile_words,
    words_of,
)
from kernels.skinny_gemm import GemmShape, NormOut, SplitSpace, skinny_gemm
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


def heard_of(box: Mailbox, sender: int, number: int) -> torch.Tensor:
    """Which words of `sender` lie in the rank's box with the number of an exchange, as 16-bit values carry it."""
    memory = _ALIVE[box.addresses][box.rank].view(torch.int64).view(2, box.count, box.places)
    return (memory[number & 1, sender] >> 48) & 0xFFFF == number & 0xFFFF


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


@pytest.mark.parametrize(
    ("count", "width", "epoch"), [(2, 1536, 0), (4, 96, 2**16 - 2), (4, 1536, 2**31 - 1), (2, 96, 2**31 - 1)]
)
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
        others_send(0, boxes, in_tiles(partials))  # the others hear what its launch sends
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


@triton.jit
def _send_tile(addresses_ptr, epochs_ptr, values_ptr, places, RANK: tl.constexpr, COUNT: tl.constexpr,  # noqa: ANN001, ANN202, N803
               BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr):  # fmt: skip # noqa: N803
    tile = tl.program_id(0)
    lines: tl.constexpr = BLOCK_N // 8
    column = tile * BLOCK_B + tl.arange(0, BLOCK_B)
    values = tl.load(values_ptr + column[None, :] * BLOCK_N + tl.arange(0, BLOCK_N)[:, None])
    epoch = tl.load(epochs_ptr) + 1
    first, second, third = pack_tile(values, epoch)
    here = column[None, :].to(tl.int64) * (3 * lines) + tl.arange(0, lines)[:, None]
    tell_tile(box_addresses(addresses_ptr, COUNT), epoch, places, here, first, second, third, RANK, COUNT)


def whole_tiles(partial: torch.Tensor, block_n: int, block_b: int) -> torch.Tensor:
    """`[rows, width]` as the programs of a product send it: `[tiles, block_b, block_n]`."""
    rows, width = partial.shape
    padded = torch.nn.functional.pad(partial, (0, 0, 0, -rows % block_b))
    cut = padded.view(-1, block_b, width // block_n, block_n)
    return cut.transpose(1, 2).reshape(-1, block_b, block_n).contiguous()


PRODUCTS = ["portable", pytest.param("streamed", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    ("count", "rows", "block_n", "block_b", "split_k", "epoch"),
    [
        (2, 5, 64, 16, 1, 0),
        (4, 20, 64, 16, 2, 2**16 - 2),
        (2, 40, 64, 64, 2, 2**15 - 2),
        (2, 33, 128, 64, 1, 2**31 - 1),
    ],
)
def test_products_add_up_over_ranks(
    device: torch.device, product: str, count: int, rows: int, block_n: int, block_b: int, split_k: int, epoch: int
) -> None:
    """Rank 0 finds the others' products in its box; they hear what its programs send."""
    dtype, width, depth = torch.bfloat16, 256, 256
    launch, shape = _product(product, block_n, block_b, split_k)
    tiles = width // block_n * -(-rows // block_b)
    places = tiles * tile_words(block_n, block_b)
    boxes = [replace(box, epochs=box.epochs[:tiles], programs=64) for box in world(count, places, 2, device, epoch)]
    weight = torch.rand(width, device=device).to(dtype)
    for exchange in range(3):
        x = torch.randn(count, rows, depth, device=device).to(dtype)
        w = (torch.randn(count, width, depth, device=device) / 16).to(dtype)
        before = torch.randn(rows, width, device=device).to(dtype)
        partials = []
        for its_x, its_w in zip(x, w, strict=True):
            partials.append(torch.empty(rows, width, device=device, dtype=dtype))
            launch(its_x, its_w, partials[-1], shape, split=_space(device))
        for box, partial in zip(boxes[1:], partials[1:], strict=True):
            sent = whole_tiles(partial, block_n, block_b)
            _send_tile[(len(sent),)](
                box.addresses, box.epochs, sent, box.places, RANK=box.rank, COUNT=count, BLOCK_N=block_n,
                BLOCK_B=block_b,
            )  # fmt: skip
        expected = before.float()
        for partial in partials:
            expected = expected + partial.float()
        results = []
        for box, its_x, its_w in zip(boxes, x, w, strict=True):
            residual, scaled = before.clone(), torch.empty_like(before)
            squares = torch.zeros(width // block_n, rows, device=device)
            launch(its_x, its_w, residual, shape, residual=residual, norm_out=NormOut(weight, scaled, squares),
                   split=_space(device), over=box, pdl=True)  # fmt: skip
            assert_close(residual, expected.to(dtype))
            assert_close(scaled, residual.float() * weight.float())
            torch.testing.assert_close(squares.sum(0), residual.float().square().sum(1))
            results.append(residual)
            assert all(heard_of(other, box.rank, epoch + exchange + 1).all() for other in boxes if other is not box)
        assert all(torch.equal(residual, results[0]) for residual in results), "to the last bit"
        now = torch.tensor([epoch + exchange + 1], dtype=torch.int64).to(torch.int32).item()
        assert all(box.epochs.tolist() == [now] * tiles for box in boxes)


def _product(name: str, block_n: int, block_b: int, split_k: int) -> tuple[Callable[..., None], object]:
    if name == "portable":
        return skinny_gemm, GemmShape(block_n, block_b, 64, split_k)
    if not is_hopper():
        pytest.skip("needs a Hopper card")
    from kernels.streamed_gemm import StreamShape, streamed_gemm

    return streamed_gemm, StreamShape(block_n, block_b, 64, split_k)


def _space(device: torch.device) -> SplitSpace:
    return SplitSpace(torch.empty(1 << 17, device=device), torch.zeros(64, dtype=torch.int32, device=device))


def test_products_that_cannot_be_added_up_are_refused(device: torch.device) -> None:
    shape, dtype = GemmShape(64, 16, 64), torch.bfloat16
    box = replace(world(2, 4 * tile_words(64, 16), 2, device)[0], epochs=torch.zeros(4, device=device), programs=4)

    def ask(width: int, box: Mailbox = box, dtype: torch.dtype = dtype) -> None:
        residual = torch.zeros(3, width, device=device, dtype=dtype)
        weight = torch.zeros(width, 64, device=device, dtype=dtype)
        skinny_gemm(residual[:, :64].contiguous(), weight, residual, shape, residual=residual, over=box)

    for width, other in ((200, box), (256, replace(box, places=box.places - 1)), (320, box)):
        with pytest.raises(ValueError, match="over: "):
            ask(width, other)
    with pytest.raises(ValueError, match="over: 4 programs that wait for each other, 3 run at once"):
        ask(256, replace(box, programs=3))
    with pytest.raises(ValueError, match="over: needs a residual of 2-byte values"):
        ask(256, dtype=torch.float32)


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
