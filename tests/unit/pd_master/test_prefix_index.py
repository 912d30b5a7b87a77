"""Which workers hold how much of a prompt."""

from collections.abc import Iterator

from services.common.messages import CacheChanges, WorkerRef
from services.common.prefix_blocks import BLOCK_TOKENS, prompt_names
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


def changes(number: int, stored: list[int], evicted: list[int] | None = None, generation: int = 1) -> CacheChanges:
    return CacheChanges(generation, number, stored, evicted or [])


def test_an_account_is_followed_in_the_order_of_its_numbers() -> None:
    index = PrefixIndex()
    assert index.follow(A, changes(0, [1, 2]))
    assert index.follow(A, changes(1, [3], [2]))
    assert index.match([1, 3]) == {A: 2}
    assert index.match([1, 2]) == {A: 1}


def test_a_lost_message_is_noticed_once_and_a_new_generation_mends_it() -> None:
    index = PrefixIndex()
    index.follow(A, changes(0, [1, 2]))
    assert not index.follow(A, changes(2, [4], [1])), "number 1 is missing"
    assert index.match([1, 2]) == {}, "what is known of it may be wrong"
    assert index.follow(A, changes(3, [5])), "it was asked already"
    assert index.match([5]) == {}
    assert index.follow(A, changes(0, [1, 5], generation=2))
    assert index.follow(A, changes(1, [6], generation=2))
    assert not index.follow(A, changes(2, [7], generation=1)), "of an account that is over"
    assert index.match([1]) == {}


def test_a_new_generation_voids_the_one_before() -> None:
    index = PrefixIndex()
    index.follow(A, changes(0, [1, 2]))
    index.follow(A, changes(0, [2], generation=2))
    assert (index.match([1]), index.match([2])) == ({}, {A: 1})
    assert index.num_entries == 1


def test_a_full_index_learns_nothing_and_forgets_in_order() -> None:
    index = PrefixIndex(max_entries=3)
    index.stored(A, [1, 2])
    index.stored(B, [1, 2])
    assert (index.match([1, 2]), index.num_entries) == ({A: 2, B: 1}, 3)
    index.forget(A)
    index.stored(B, [2])
    assert (index.match([1, 2]), index.num_entries) == ({B: 2}, 2)


def test_a_forgotten_workers_place_goes_to_another_one() -> None:
    index = PrefixIndex()
    index.stored(A, [1])
    index.forget(A)
    index.stored(B, [2])
    assert (index.match([1]), index.match([2])) == ({}, {B: 1})


def test_the_last_token_of_a_prompt_counts_as_missing() -> None:
    index, ids = PrefixIndex(), list(range(2 * BLOCK_TOKENS))
    assert index.cached_tokens(ids) == {}
    index.stored(A, prompt_names(ids))
    assert index.cached_tokens(ids) == {A: 2 * BLOCK_TOKENS - 1}
    assert index.cached_tokens([*ids, 7]) == {A: 2 * BLOCK_TOKENS}
    assert index.cached_tokens([7, *ids]) == {}


def test_no_more_of_a_prompt_is_hashed_than_somebody_holds() -> None:
    index, taken = PrefixIndex(), []

    def names() -> Iterator[int]:
        for name in range(1, 100):
            taken.append(name)
            yield name

    index.stored(A, [1, 2])
    assert index.match(names()) == {A: 2}
    assert taken == [1, 2, 3]
