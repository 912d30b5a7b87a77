"""The slot allocator against a plain set."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.engine.arrays import Ints
from services.engine.slots import SlotAllocator, runs


def is_run(slots: Ints) -> bool:
    return bool(np.all(np.diff(slots) == 1))


@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "extend", "free", "free part"]), st.integers(0, 40)), max_size=80)
)
def test_it_hands_out_each_slot_once_and_takes_all_back(steps: list[tuple[str, int]]) -> None:
    allocator = SlotAllocator(64)
    held: list[Ints] = []
    for what, n in steps:
        if what == "allocate":
            free = set(range(64)) - {s for slots in held for s in slots.tolist()}
            slots = allocator.allocate(n)
            assert (slots is None) == (n > len(free))
            if slots is not None and n:
                assert set(slots.tolist()) <= free
                assert len(set(slots.tolist())) == n
                held.append(slots)
        elif what == "extend" and held:
            more = allocator.extend(int(held[-1][-1]) + 1, n)
            assert is_run(np.concatenate((held[-1][-1:], more)))
            held[-1] = np.concatenate((held[-1], more))
        elif what == "free" and held:
            allocator.free(held.pop(n % len(held)))
        elif what == "free part" and held and len(held[-1]) > 1:
            cut = n % len(held[-1]) or 1
            allocator.free(held[-1][cut:])
            held[-1] = held[-1][:cut]
        used = {s for slots in held for s in slots.tolist()}
        assert set(allocator.free_slots().tolist()) == set(range(64)) - used
        assert allocator.num_free == 64 - len(used)
    for slots in held:
        allocator.free(slots)
    everything = allocator.allocate(64)
    assert everything is not None
    assert is_run(everything), "free neighbours were not merged"


def test_a_run_is_preferred_to_pieces_and_the_tightest_to_a_large_one() -> None:
    allocator = SlotAllocator(100)
    first, hole, _, _ = (allocator.allocate(n) for n in (10, 5, 10, 1))
    assert first is not None
    assert hole is not None
    allocator.free(hole)
    tight = allocator.allocate(5)
    assert tight is not None
    assert tight.tolist() == hole.tolist()


def test_pieces_are_taken_when_no_run_is_long_enough() -> None:
    allocator = SlotAllocator(30)
    parts = [allocator.allocate(5) for _ in range(6)]
    for i in (0, 2, 4):
        part = parts[i]
        assert part is not None
        allocator.free(part)
    slots = allocator.allocate(12)
    assert slots is not None
    assert len(runs(slots)) == 3


def test_runs_of_scattered_slots() -> None:
    assert runs(np.array([7, 3, 4, 9, 8], np.int32)) == [(3, 5), (7, 10)]
    assert runs(np.empty(0, np.int32)) == []
