"""Pages: states, their only moves, the pool's invariant."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.engine.transfer.page_memory import HostMemory, pattern
from services.engine.transfer.pages import Page, PagePool, PageState


def pool(num_pages: int = 3) -> PagePool:
    return PagePool(HostMemory(), num_pages, 64)


def test_pages_do_not_overlap_each_other_or_the_scratch_page() -> None:
    pages = pool()
    held = [page for page in (pages.acquire() for _ in range(3)) if page is not None]
    for number, page in enumerate(held):
        page.buffer[:] = number + 1
    pages.scratch[:] = 9
    assert [set(page.buffer.tolist()) for page in held] == [{1}, {2}, {3}]


def test_an_empty_pool_gives_none_and_never_waits() -> None:
    pages = pool(1)
    assert pages.acquire() is not None
    assert pages.acquire() is None


def test_a_page_that_ucx_still_refers_to_cannot_be_released() -> None:
    page = pool().acquire()
    assert page is not None
    page.lend()
    with pytest.raises(RuntimeError, match="moving"):
        page.release()
    page.quarantine()
    with pytest.raises(RuntimeError, match="quarantined"):
        page.release()
    page.restore()
    page.release()


def test_a_page_is_released_once() -> None:
    page = pool().acquire()
    assert page is not None
    page.release()
    with pytest.raises(RuntimeError, match="free"):
        page.release()


def test_release_tells_who_waits() -> None:
    pages = pool()
    told: list[int] = []
    pages.notify(lambda: told.append(pages.counts().free))
    page = pages.acquire()
    assert page is not None
    page.release()
    assert told == [3]


def test_integrity_names_a_page_whose_state_and_place_differ() -> None:
    pages = pool()
    page = pages.acquire()
    assert page is not None
    assert pages.check_integrity() == []
    page.state = PageState.FREE
    assert pages.check_integrity() == [f"page {page.index} is free but not in the free list"]


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="num_pages"):
        PagePool(HostMemory(), 0, 64)


def test_a_shifted_pattern_differs() -> None:
    whole = pattern(200_000, seed=1)
    assert not (whole[: 200_000 - 65_536] == whole[65_536:]).all()


class PoolMachine(RuleBasedStateMachine):
    """Random lives of pages never break the invariant, and all come back."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool(4)
        self.pages: list[Page] = []

    @rule()
    def acquire(self) -> None:
        page = self.pool.acquire()
        assert (page is None) == (len(self.pages) == 4)
        if page is not None:
            self.pages.append(page)

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.pages))
        match page.state:
            case PageState.HELD if data.draw(st.booleans()):
                page.lend()
            case PageState.HELD:
                page.release()
                self.pages.remove(page)
            case PageState.MOVING if data.draw(st.booleans()):
                page.quarantine()
            case _:
                page.restore()

    @invariant()
    def every_page_is_in_one_place(self) -> None:
        assert self.pool.check_integrity() == []
        assert self.pool.counts().free == 4 - len(self.pages)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, deadline=None)
