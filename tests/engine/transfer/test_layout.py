"""Gather and scatter between a pool and pages."""

import pytest
import torch

from services.engine.transfer.heads import HeadRange
from services.engine.transfer.layout import PageLayout, gather, scatter
from services.engine.transfer.page_memory import HostMemory
from services.engine.transfer.pages import PagePool

LAYERS, SLOTS, HEADS, DIM = 3, 40, 2, 8


def pool(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(LAYERS, SLOTS + 1, 2 * HEADS, DIM, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("slots", [[0], [39], [5, 6, 7, 8], [31, 2, 17, 3, 39, 0]])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_kv_comes_out_of_a_page_as_it_went_in(dtype: torch.dtype, slots: list[int], index_dtype: torch.dtype) -> None:
    kv, other = pool(dtype), torch.zeros(LAYERS, SLOTS + 1, 2 * HEADS, DIM, dtype=dtype)
    layout = PageLayout.of(kv)
    page = PagePool(HostMemory(), 1, 8 * layout.token_bytes).acquire()
    assert page is not None
    there = [(slot * 7 + 1) % SLOTS for slot in slots]
    gather(kv, torch.tensor(slots, dtype=index_dtype), layout.view(page.buffer, len(slots)))
    scatter(layout.view(page.buffer, len(slots)), torch.tensor(there, dtype=index_dtype), other)
    assert torch.equal(other[:, there], kv[:, slots])
    untouched = [slot for slot in range(SLOTS + 1) if slot not in there]
    assert not other[:, untouched].any()


def test_a_page_is_layers_then_tokens_then_heads() -> None:
    kv = pool(torch.float32)
    layout = PageLayout.of(kv)
    buffer = PagePool(HostMemory(), 1, 3 * layout.token_bytes).scratch
    gather(kv, torch.tensor([4, 9, 1]), layout.view(buffer, 3))
    flat = torch.from_numpy(buffer).view(torch.float32)
    row = 2 * HEADS * DIM
    assert torch.equal(flat[(2 * 3 + 1) * row : (2 * 3 + 2) * row], kv[2, 9].flatten())


def test_sizes_follow_from_the_pool() -> None:
    layout = PageLayout.of(pool(torch.bfloat16))
    assert layout.token_bytes == LAYERS * 2 * HEADS * DIM * 2
    assert layout.tokens_per_page(10 * layout.token_bytes + 3) == 10


def test_what_does_not_fit_is_an_error() -> None:
    kv = pool(torch.float32)
    layout = PageLayout.of(kv)
    with pytest.raises(ValueError, match="page_bytes must be at least"):
        layout.tokens_per_page(layout.token_bytes - 1)
    with pytest.raises(ValueError, match="the page has"):
        layout.view(PagePool(HostMemory(), 1, layout.token_bytes).scratch, 2)
    with pytest.raises(ValueError, match="page: expected"):
        gather(kv, torch.tensor([1, 2]), torch.empty(LAYERS, 3, 2 * HEADS, DIM))
    with pytest.raises(ValueError, match="kv: expected"):
        PageLayout.of(torch.empty(2, 3, 5, 8))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_pages_of_some_heads_leave_the_others_alone(first: int) -> None:
    kv = torch.randn(LAYERS, SLOTS + 1, 2 * 4, DIM)
    slots, page = torch.tensor([7, 3, 30]), torch.empty(LAYERS, 3, 2 * 2, DIM)
    gather(kv, slots, page, first)
    heads = [*range(first, first + 2), *range(4 + first, 4 + first + 2)]
    assert torch.equal(page, kv[:, slots][:, :, heads])
    other = torch.zeros_like(kv)
    scatter(page, slots, other, first)
    assert torch.equal(other[:, slots][:, :, heads], page)
    assert other.count_nonzero() == page.count_nonzero()
    with pytest.raises(ValueError, match="2 heads from 3, the pool has 4"):
        gather(kv, slots, page, 3)


def test_ranks_meet_in_the_heads_that_both_hold() -> None:
    whole, halves = HeadRange.of_rank(8, 0, 1), [HeadRange.of_rank(8, rank, 2) for rank in range(2)]
    assert halves == [(0, 4), (4, 4)]
    assert [whole.meet(half) for half in halves] == halves
    assert halves[0].meet(halves[1]).num_heads == 0
    assert HeadRange.of_rank(8, 2, 4).meet(halves[1]) == (4, 2)


def test_what_a_rank_shares_is_known_before_it_meets_others() -> None:
    assert HeadRange.of_rank(8, 0, 1).shares(8) == [8, 4, 2, 1]
    assert HeadRange.of_rank(8, 1, 2).shares(8) == [4, 2, 1]
    assert HeadRange.of_rank(12, 0, 3).shares(12) == [4, 3, 2, 1]
    assert HeadRange.of_rank(1, 0, 1).shares(1) == [1]
