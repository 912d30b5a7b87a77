"""Holdings: any history of acquire, grow, share, fork and release leaves every slot with one owner."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.engine.arrays import Ints
from services.engine.kv_cache import EXTENT_SLOTS, Holding, KvCache

NUM_SLOTS = 96


def ids(values: list[int]) -> Ints:
    return np.array(values, np.int32)


class KvCacheMachine(RuleBasedStateMachine):
    """Plays jobs: prompts acquired, shared when computed, forked into choices that grow, released."""

    @initialize(prefix_cache=st.booleans())
    def begin(self, prefix_cache: bool) -> None:
        self.kv = KvCache(NUM_SLOTS, prefix_cache=prefix_cache)
        self.prompts: list[tuple[Holding, Ints]] = []
        self.sequences: list[tuple[Holding, list[int]]] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=40), reserved=st.booleans(), spare=st.integers(0, 8))
    def acquire(self, tokens: list[int], reserved: bool, spare: int) -> None:
        usage = self.kv.usage()
        holding = self.kv.acquire(ids(tokens), len(tokens) - 1, spare=spare, reserved=reserved)
        if holding is None:
            assert self.kv.usage() == usage
            return
        assert len(tokens) <= len(holding.slots) <= len(tokens) + spare
        assert len(set(holding.slots.tolist())) == len(holding.slots)
        self.prompts.append((holding, ids(tokens)))

    @precondition(lambda self: self.prompts)
    @rule(n=st.integers(0, 9), choices=st.integers(1, 3))
    def compute(self, n: int, choices: int) -> None:
        holding, tokens = self.prompts.pop(n % len(self.prompts))
        if holding.reserved:
            self.kv.join(holding)
        self.kv.share(holding, tokens)
        forks = [self.kv.fork(holding) for _ in range(choices - 1)]
        self.sequences += [(each, tokens.tolist()) for each in (holding, *forks)]

    @precondition(lambda self: self.sequences)
    @rule(n=st.integers(0, 9), new=st.lists(st.integers(0, 1), max_size=20))
    def decode(self, n: int, new: list[int]) -> None:
        holding, tokens = self.sequences[n % len(self.sequences)]
        for token in new:
            if len(tokens) == len(holding.slots) and not self.kv.grow(holding):
                assert self.kv.available == 0
                return
            tokens.append(token)

    @precondition(lambda self: self.sequences)
    @rule(n=st.integers(1, 9))
    def grow_all(self, n: int) -> None:
        holdings = [holding for holding, _ in self.sequences[:n]]
        before, usage = [holding.slots.copy() for holding in holdings], self.kv.usage()
        slots = self.kv.grow_all(holdings)
        if slots is None:
            assert usage.free_slots < EXTENT_SLOTS * len(holdings)
            assert self.kv.usage() == usage
            return
        for holding, had, own in zip(holdings, before, slots, strict=True):
            assert holding.slots.tolist() == [*had.tolist(), *own.tolist()]

    @precondition(lambda self: self.sequences)
    @rule(n=st.integers(0, 9), keep=st.booleans())
    def end(self, n: int, keep: bool) -> None:
        holding, tokens = self.sequences.pop(n % len(self.sequences))
        self.kv.release(holding, ids(tokens) if keep else None)

    @precondition(lambda self: self.prompts)
    @rule(n=st.integers(0, 9), computed=st.integers(0, 40))
    def abort(self, n: int, computed: int) -> None:
        holding, tokens = self.prompts.pop(n % len(self.prompts))
        self.kv.release(holding, None if holding.reserved else tokens[:computed])

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        if not hasattr(self, "kv"):
            return
        holdings = [holding for holding, _ in (*self.prompts, *self.sequences)]
        assert self.kv.problems(holdings) == []
        usage = self.kv.usage()
        parts = usage.free_slots + usage.held_slots + usage.reserved_slots + usage.evictable_slots
        assert parts == usage.num_slots == NUM_SLOTS

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        for holding, _ in (*self.prompts, *self.sequences):
            self.kv.release(holding)
        assert self.kv.problems([]) == []
        assert self.kv.available == NUM_SLOTS


TestKvCache = KvCacheMachine.TestCase
TestKvCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_prompt_and_its_growth_stay_one_run() -> None:
    kv = KvCache(1000, prefix_cache=True)
    holding = kv.acquire(ids(list(range(50))), 49)
    assert holding is not None
    assert kv.grow(holding)
    assert len(holding.slots) == 50 + EXTENT_SLOTS
    assert np.all(np.diff(holding.slots) == 1)


def test_sequences_that_grow_together_stay_runs_where_they_can() -> None:
    kv = KvCache(1000, prefix_cache=True)
    holdings = [kv.acquire(ids(list(range(i, i + 50))), 49) for i in range(3)]
    grown = [holding for holding in holdings if holding is not None]
    assert kv.grow_all(grown) is not None
    assert [len(holding.slots) for holding in grown] == 3 * [50 + EXTENT_SLOTS]
    assert np.all(np.diff(grown[-1].slots) == 1), "nobody had the slots behind the last"
    assert kv.problems(grown) == []


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_forks_share_the_prompts_slots_until_the_last_goes(prefix_cache: bool) -> None:
    kv = KvCache(100, prefix_cache=prefix_cache)
    prompt = ids([1, 2, 3, 4])
    first = kv.acquire(prompt, 3)
    assert first is not None
    kv.share(first, prompt)
    second = kv.fork(first)
    assert second.slots.tolist() == first.slots.tolist()
    kv.release(first)
    assert kv.usage().held_slots == 4
    kv.release(second)
    assert kv.usage().held_slots == 0
    assert kv.usage().evictable_slots == (4 if prefix_cache else 0)


def test_two_computations_of_one_prompt_end_with_one_copy() -> None:
    kv = KvCache(100, prefix_cache=True)
    prompt = ids([5, 6, 7, 8])
    one, other = (kv.acquire(prompt, 3) for _ in range(2))
    assert one is not None
    assert other is not None
    assert not kv.share(one, prompt)
    assert kv.share(other, prompt)
    assert one.slots.tolist() == other.slots.tolist()
    assert kv.usage().held_slots == 4
