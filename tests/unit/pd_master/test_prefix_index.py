"""Which workers hold how much of a prompt."""

from services.common.messages import WorkerRef
from services.pd_master.prefix_index import PrefixIndex

A, B = WorkerRef("a", "1"), WorkerRef("b", "1")


def test_match_ends_at_the_first_missing_block() -> None:
    index = PrefixIndex()
    index.stored(A, [1, 2, 3])
    index.stored(B, [1, 3])
    assert index.match([1, 2, 3, 4]) == {A: 3, B: 1}
    assert index.match([9, 1]) == {}
    assert index.match([]) == {}


def test_evicted_blocks_end_matches_and_leave_nothing_behind() -> None:
    index = PrefixIndex()
    index.stored(A, [1, 2])
    index.stored(B, [1])
    index.evicted(A, [2, 7])
    assert index.match([1, 2]) == {A: 1, B: 1}
    index.evicted(A, [1])
    index.evicted(B, [1])
    assert len(index) == 0


def test_forgotten_worker_matches_no_more() -> None:
    index = PrefixIndex()
    index.stored(A, [1, 2])
    index.stored(B, [1])
    index.forget(A)
    assert index.match([1, 2]) == {B: 1}
    index.forget(A)
