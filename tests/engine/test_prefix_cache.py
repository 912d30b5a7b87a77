"""The prefix tree against a plain dictionary of prefixes."""

from itertools import takewhile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.common.prefix_blocks import BLOCK_TOKENS, prompt_names
from services.engine.arrays import Ints
from services.engine.prefix_cache import Node, PrefixCache


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


def insert(cache: PrefixCache, tokens: list[int], first_slot: int) -> int:
    """Insert with slots from `first_slot` on; returns how many tokens were there already."""
    slots = np.arange(first_slot, first_slot + len(tokens), dtype=np.int32)
    return cache.insert(ints(*tokens), slots).num_tokens


def slots_of(node: Node) -> list[int]:
    return [int(slot) for each in node.path() for slot in each.slots]


def test_a_match_ends_inside_a_node_and_splits_it() -> None:
    cache = PrefixCache()
    assert insert(cache, [1, 2, 3, 4], 10) == 0
    match = cache.match(ints(1, 2, 9), 3)
    assert (match.num_tokens, slots_of(match.node)) == (2, [10, 11])
    assert cache.match(ints(1, 2, 3, 4), 3).num_tokens == 3
    assert cache.match(ints(5), 1).num_tokens == 0
    assert cache.problems([]) == []


def test_what_is_there_already_keeps_its_slots() -> None:
    cache = PrefixCache()
    insert(cache, [1, 2, 3], 10)
    assert insert(cache, [1, 2, 3, 4, 5], 20) == 3
    assert slots_of(cache.match(ints(1, 2, 3, 4, 5), 5).node) == [10, 11, 12, 23, 24]


def test_a_node_that_is_known_is_not_compared_and_counts_as_used() -> None:
    cache = PrefixCache()
    insert(cache, [1, 2, 3], 10)
    known = cache.match(ints(1, 2, 3), 3).node
    insert(cache, [7], 20)
    match = cache.insert(ints(1, 2, 3, 4), ints(30, 31, 32, 33), known=known)
    assert (match.num_tokens, slots_of(match.node)) == (3, [10, 11, 12, 33])
    assert [cache.evict(1).tolist() for _ in range(3)] == [[20], [33], [12]]
    assert cache.problems([]) == []


def test_a_locked_prefix_survives_eviction_and_its_unlocked_end_does_not() -> None:
    cache = PrefixCache()
    insert(cache, [1, 2, 3, 4], 10)
    kept = cache.match(ints(1, 2), 2).node
    assert cache.lock(kept) == 2
    assert sorted(cache.evict(100).tolist()) == [12, 13]
    assert cache.num_evictable == 0
    cache.unlock(kept)
    assert sorted(cache.evict(100).tolist()) == [10, 11]
    assert cache.problems([]) == []


def test_the_least_recently_used_leaf_goes_first_and_a_long_one_from_its_end() -> None:
    cache = PrefixCache()
    insert(cache, [1, 1, 1], 10)
    insert(cache, [2, 2, 2], 20)
    cache.match(ints(1, 1, 1), 3)
    assert cache.evict(2).tolist() == [21, 22]
    assert cache.match(ints(2, 2, 2), 3).num_tokens == 1


def test_the_tree_names_the_blocks_that_it_holds_whole() -> None:
    cache, ids = PrefixCache(), list(range(3 * BLOCK_TOKENS))
    one, two, three = prompt_names(ids)
    insert(cache, ids[: BLOCK_TOKENS + 5], 0)
    assert cache.names.take() == ([one], [])
    insert(cache, ids, 1000)
    assert cache.names.take() == ([two, three], [])
    other = [*ids[: BLOCK_TOKENS + 9], *([7] * BLOCK_TOKENS)]
    insert(cache, other, 2000)  # splits a node within its second block
    assert cache.names.take() == ([list(prompt_names(other))[1]], [])
    cache.match(ints(*other), len(other))
    cache.evict(1)
    assert cache.names.take() == ([], [three])
    assert cache.problems([]) == []


def test_a_private_tree_names_nothing() -> None:
    cache, ids = PrefixCache(), ints(*range(BLOCK_TOKENS))
    cache.insert(ids, ids, Node(ids[:0], ids[:0], None))
    assert cache.names.take() == ([], [])


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=4)), max_size=30))
def test_what_is_told_adds_up_to_what_is_held(steps: list[tuple[bool, list[int]]]) -> None:
    cache, told, next_slot = PrefixCache(), set[int](), 0
    for is_insert, parts in steps:
        tokens = [part for part in parts for _ in range(40)]
        if is_insert:
            insert(cache, tokens, next_slot)
            next_slot += len(tokens)
        else:
            cache.evict(len(tokens))
        stored, evicted = cache.names.take()
        told = (told | set(stored)) - set(evicted)
        assert told == {name for node in cache.nodes() for name in node.names}
        for tokens in ([0] * 160, [1] * 160, [0] * 40 + [1] * 120):
            held = cache.match(ints(*tokens), len(tokens)).num_tokens // BLOCK_TOKENS
            assert sum(1 for _ in takewhile(told.__contains__, prompt_names(tokens))) == held
    assert cache.problems([]) == []


tokens_lists = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["insert", "match", "lock", "unlock", "evict"]), tokens_lists), max_size=60))
def test_any_history_keeps_counts_locks_and_contents(steps: list[tuple[str, list[int]]]) -> None:
    cache, next_slot, locked = PrefixCache(), 0, []
    owner: dict[int, tuple[int, ...]] = {}  # slot -> the prefix whose last token it holds
    for what, tokens in steps:
        array = ints(*tokens)
        if what == "insert":
            known = insert(cache, tokens, next_slot)
            for i in range(known, len(tokens)):
                owner[next_slot + i] = tuple(tokens[: i + 1])
            next_slot += len(tokens)
        elif what == "match":
            match = cache.match(array, len(tokens))
            slots = slots_of(match.node)
            assert [owner[slot] for slot in slots] == [tuple(tokens[: i + 1]) for i in range(match.num_tokens)]
        elif what == "lock":
            node = cache.match(array, len(tokens)).node
            assert cache.unlocked_tokens(node) == cache.lock(node)
            locked.append(node)
        elif what == "unlock" and locked:
            cache.unlock(locked.pop())
        elif what == "evict":
            before = cache.num_evictable
            freed = cache.evict(len(tokens))
            assert len(freed) >= min(before, len(tokens))
            for slot in freed.tolist():
                del owner[slot]
        assert cache.problems([]) == []
        assert cache.num_tokens == len(owner)
    for node in locked:
        cache.unlock(node)
    assert len(cache.evict(10_000)) == len(owner), "something unlocked could not be evicted"
