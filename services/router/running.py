"""Work that is let in: what it holds, how long it will stay.

    proposed ---> held ---> decoding ---> gone
        |           \\________________________/    a prompt to hand over goes from held to gone
        '---> back to the queue (Deferred)

Proposed and held work is one standing entry of the ledger; work that decodes is one growing entry for each choice, with
the prompt of several choices as their share. `check_integrity` compares the two.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from services.router.output_length import OutputLengths, place_of
from services.router.peak_ledger import PeakLedger
from services.router.sequence_facts import SequenceFacts
from services.router.waiting import Waiting
from services.router.work import RouterConfig, WorkKind

_FORGET = 0.98
"""What is left of an old maximum with each one that starts."""


class Stage(enum.Enum):
    """Where let-in work is."""

    PROPOSED = "proposed"
    HELD = "held"
    DECODING = "decoding"


@dataclass(slots=True)
class LetIn:
    """One piece of work between proposal and end."""

    entry: Waiting
    held: int
    """Slots counted for it while it stands."""
    left: int
    """Predicted steps until each choice ends, when it was proposed."""
    compute_left: int
    live: set[int]
    """Choices that have not ended."""
    since: int
    """The ledger's step when it was proposed."""
    waited_slots: int = 0
    """Its predicted peak, where it was let in after something had waited: evidence of a rate once it is admitted."""
    stage: Stage = Stage.PROPOSED

    def ledger_key(self, choice: int) -> Hashable:
        """The ledger's name of a choice: one choice keeps the work's own entry."""
        work = self.entry.work
        return work.key if work.num_choices == 1 or self.stage is not Stage.DECODING else (work.key, choice)


class RunningSet:
    """Owned by one Router."""

    def __init__(self, config: RouterConfig, lengths: OutputLengths) -> None:
        self._config = config
        self._lengths = lengths
        self._work: dict[Hashable, LetIn] = {}
        self._computing: dict[Hashable, LetIn] = {}
        self._facts = SequenceFacts()
        self._num_placed = 0
        self._join_steps = float(config.join_steps)
        self.ledger = PeakLedger()
        self.num_sequences = 0
        self.proposed_slots = 0
        self.ungranted_slots = 0
        self.num_resuming = 0
        """Preempted sequences that are proposed and not answered."""

    def __len__(self) -> int:
        return len(self._work)

    def get(self, key: Hashable) -> LetIn | None:
        """The work of a key, if it is let in."""
        return self._work.get(key)

    def next_place(self) -> float:
        """A place among quantiles for one more sequence."""
        self._num_placed += 1
        return place_of(self._num_placed)

    @property
    def computing_tokens(self) -> int:
        """Prompt tokens of work that is in and not computed yet."""
        return sum(one.compute_left for one in self._computing.values())

    @property
    def step_tokens_left(self) -> int:
        """Prompt tokens that the next steps can take beside those in already."""
        ahead = self._config.lookahead_steps
        taken = sum(min(one.compute_left, ahead * self._config.chunk_tokens) for one in self._computing.values())
        return ahead * self._config.step_budget_tokens - taken

    @property
    def join_steps(self) -> int:
        """Steps that others decode between proposal and first own step: the most of late, slowly forgotten.

        What starts later ends later, beside more of the others' growth. Counting it as ending so much later and growing
        from now on bounds it from above.
        """
        return round(self._join_steps)

    def propose(self, entry: Waiting, left: int, waited_slots: int = 0) -> None:
        """The plan lets it in; the engine has still to answer. left: the steps until it ends, `join_steps` included."""
        work = entry.work
        choices = set(range(work.num_choices))
        held, now = self._config.held_slots(work), self.ledger.now
        one = LetIn(entry, held, left, work.compute_tokens, choices, now, waited_slots)
        row = self.ledger.add(work.key, one.held, left, work.num_choices if work.grows else 0)
        self._facts.put(row, entry, entry.unit)
        self._work[work.key] = one
        self._count(one, 1)
        if one.compute_left:
            self._computing[work.key] = one

    def admitted(self, key: Hashable, held_slots: int, cached_tokens: int) -> None:
        """The engine took it, and says what it occupies."""
        one = self._work.get(key)
        if one is None or one.stage is not Stage.PROPOSED:
            return
        self._count(one, -1)
        one.stage, one.held = Stage.HELD, self._config.admitted_slots(one.entry.work, held_slots)
        self._count(one, 1)
        self.ledger.set_held(key, one.held)
        self.computed(key, one.compute_left - cached_tokens)

    def computed(self, key: Hashable, tokens_left: int) -> None:
        """So much of its prompt remains to be computed."""
        one = self._work.get(key)
        if one is None:
            return
        one.compute_left = max(tokens_left, 0)
        if not one.compute_left:
            self._computing.pop(key, None)

    def granted(self, key: Hashable) -> None:
        """A decode worker has promised room."""
        one = self._work.get(key)
        if one is not None:
            self._count(one, -1)
            one.entry.granted = True
            self._count(one, 1)

    def started(self, key: Hashable) -> None:
        """Its choices decode from now on."""
        one = self._work.get(key)
        if one is None or one.stage is Stage.DECODING or not one.entry.work.grows:
            return
        self.computed(key, 0)
        self._join_steps = max(self._join_steps * _FORGET, self.ledger.now - one.since)
        if one.entry.work.num_choices == 1:
            self._count(one, -1)
            one.stage = Stage.DECODING
            self._count(one, 1)
            self._facts.start(self.ledger.start(key), self.ledger.now)
        else:
            self._split(one)

    def ended(self, key: Hashable, choice: int) -> LetIn | None:
        """A choice freed its own slots. Returns its work, None if that is unknown."""
        one = self._work.get(key)
        if one is None or choice not in one.live:
            return None
        if one.live == {choice}:
            return self.gone(key)
        if one.stage is Stage.DECODING:
            self.ledger.remove(one.ledger_key(choice))
        one.live.discard(choice)
        self.num_sequences -= 1
        return one

    def gone(self, key: Hashable) -> LetIn | None:
        """Nothing is left of it in the engine. Returns what it was, None if it is unknown."""
        one = self._work.pop(key, None)
        if one is None:
            return None
        self._count(one, -1)
        self._computing.pop(key, None)
        for name in {one.ledger_key(choice) for choice in one.live}:
            self.ledger.remove(name)
        return one

    def produced(self, one: LetIn, choice: int) -> int:
        """Output tokens of a live choice so far."""
        return self._facts.produced(self.ledger.row(one.ledger_key(choice)), self.ledger.now)

    def predict(self, level: float, *, all_of_them: bool) -> None:
        """New predictions: for all after rebuilding the tables, or only for those that outlived theirs."""
        rows = self.ledger.rows(overdue=not all_of_them)
        if all_of_them:
            decoding = self._facts.sequences(rows[self._facts.decoding(rows)], self.ledger.now)
            self._lengths.refresh(decoding.produced, decoding.group, self.ledger.now)
        if len(rows):
            left = self._lengths.remaining(self._facts.sequences(rows, self.ledger.now), level)
            self.ledger.set_left(rows, np.where(self._facts.joining(rows), left + self.join_steps, left))

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        self.ledger.check_integrity()
        names = {one.ledger_key(choice) for one in self._work.values() for choice in one.live}
        assert len(names) == len(self.ledger), "ledger entries and let-in work differ"
        assert all(name in self.ledger for name in names), "let-in work is missing in the ledger"
        assert self.num_sequences == sum(len(one.live) for one in self._work.values()), "count of sequences is wrong"
        proposed = [one for one in self._work.values() if one.stage is Stage.PROPOSED]
        assert self.proposed_slots == sum(one.held for one in proposed), "count of proposed slots is wrong"
        ungranted = sum(one.held for one in self._work.values() if _lacks_grant(one))
        assert self.ungranted_slots == ungranted, "count of ungranted slots is wrong"

    def _split(self, one: LetIn) -> None:
        """One standing entry becomes a growing one for each choice, over their common prompt."""
        slack = self._config.extent_slots - 1
        self.ledger.remove(one.entry.work.key)
        self._count(one, -1)
        one.stage = Stage.DECODING
        self._count(one, 1)
        members = [one.ledger_key(choice) for choice in one.live]
        for member in members:
            row = self.ledger.add(member, slack, one.left)
            self._facts.put(row, one.entry, self.next_place())
            self._facts.start(self.ledger.start(member), self.ledger.now)
        self.ledger.share(one.entry.work.key, max(one.held - len(members) * slack, 0), members)

    def _count(self, one: LetIn, sign: int) -> None:
        """Put this work into the sums, or take it out: before and after every change of it."""
        self.num_sequences += sign * len(one.live)
        if one.stage is Stage.PROPOSED:
            self.proposed_slots += sign * one.held
            self.num_resuming += sign * (one.entry.work.kind is WorkKind.RESUMED)
        if _lacks_grant(one):
            self.ungranted_slots += sign * one.held


def _lacks_grant(one: LetIn) -> bool:
    return one.entry.work.kind is WorkKind.PREFILL and not one.entry.granted
