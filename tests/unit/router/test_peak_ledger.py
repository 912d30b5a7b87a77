"""`PeakLedger` driven by random operations, against a model that keeps every entry and steps it by hand."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.router.peak_ledger import PeakLedger
from services.router.peak_memory import peak_tokens


@dataclass
class Model:
    """One entry, the plain way."""

    held: int
    left: int
    growth: int
    row: int
    growing: bool = False
    share: int | None = None


class LedgerMachine(RuleBasedStateMachine):
    """Random lives of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = PeakLedger()
        self.entries: dict[int, Model] = {}
        self.shares: dict[int, int] = {}
        self.next_key = 0

    @rule(held=st.integers(0, 50), left=st.integers(0, 20), growth=st.integers(0, 2))
    def add(self, held: int, left: int, growth: int) -> None:
        row = self.ledger.add(self.next_key, held, left, growth)
        self.entries[self.next_key] = Model(held, left, growth, row)
        self.next_key += 1

    @precondition(lambda self: any(not entry.growing for entry in self.entries.values()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([key for key, entry in self.entries.items() if not entry.growing]))
        self.ledger.start(key)
        self.entries[key].growing = True

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.entries)))
        self.ledger.remove(key)
        del self.entries[key]

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), held=st.integers(0, 50), left=st.integers(0, 20))
    def correct(self, data: st.DataObject, held: int, left: int) -> None:
        key = data.draw(st.sampled_from(list(self.entries)))
        entry = self.entries[key]
        self.ledger.set_held(key, held)
        self.ledger.set_left(np.array([entry.row]), np.array([left]))
        entry.held, entry.left = held, left

    @precondition(lambda self: any(entry.share is None for entry in self.entries.values()))
    @rule(data=st.data(), held=st.integers(1, 50))
    def share(self, data: st.DataObject, held: int) -> None:
        free = [key for key, entry in self.entries.items() if entry.share is None]
        members = data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True))
        name = self.next_key
        self.next_key += 1
        self.ledger.share(name, held, list(members))
        self.shares[name] = held
        for member in members:
            self.entries[member].share = name

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        self.ledger.advance(steps)
        for entry in self.entries.values():
            if entry.growing:
                entry.held += entry.growth * steps
                entry.left = max(entry.left - steps, 0)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        self.ledger.check_integrity()
        assert self.ledger.held == sum(held for held, _, _ in self.load())

    @rule()
    def ask(self) -> None:
        load = np.array(self.load(), dtype=np.int64).reshape(-1, 3)
        assert self.ledger.curve().peak == peak_tokens(*load.T)

    def load(self) -> list[tuple[int, int, int]]:
        entries = list(self.entries.values())
        load = [(entry.held, entry.left, entry.growth) for entry in entries]
        for name, held in self.shares.items():
            members = [entry for entry in entries if entry.share == name]
            if members:
                load.append((held, max(entry.left for entry in members), 0))
        return load


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerAgreesWithAModel = LedgerMachine.TestCase


def test_shared_prefix_is_counted_once_until_its_last_member_leaves() -> None:
    ledger = PeakLedger()
    ledger.add("a", held=2, left=3)
    ledger.add("b", held=2, left=9)
    ledger.share("prompt", 100, ["a", "b"])
    assert ledger.held == 104
    assert ledger.curve().peak == 100 + 2 + 9
    ledger.remove("a")
    assert ledger.held == 102
    ledger.remove("b")
    assert ledger.held == 0
    assert ledger.curve().peak == 0


def test_a_step_leaves_the_curve_of_growing_entries_as_it_is() -> None:
    ledger = PeakLedger()
    ledger.add("a", held=10, left=5)
    ledger.start("a")
    before = ledger.curve()
    ledger.advance()
    assert ledger.curve().ends is before.ends
    assert ledger.curve().peak == 15


def test_a_standing_entry_does_not_use_up_what_is_left() -> None:
    ledger = PeakLedger()
    ledger.add("reservation", held=10, left=5)
    ledger.advance(100)
    assert ledger.curve().peak == 15


def test_rows_are_used_again_when_no_curve_is_asked_for() -> None:
    ledger = PeakLedger()
    rows = set()
    for number in range(1000):
        rows.add(ledger.add(number, 1, 1))
        if number % 50 == 0:
            ledger.curve()
        ledger.remove(number)
    assert len(rows) <= 64
    ledger.check_integrity()


def test_a_key_is_added_and_started_only_once() -> None:
    ledger = PeakLedger()
    ledger.add("a", 1, 1)
    with pytest.raises(KeyError, match="in the ledger already"):
        ledger.add("a", 1, 1)
    ledger.start("a")
    with pytest.raises(KeyError, match="growing already"):
        ledger.start("a")
    with pytest.raises(KeyError):
        ledger.remove("b")
