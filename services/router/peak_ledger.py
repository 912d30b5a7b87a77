"""Who occupies the pool: entries that are let in, start to grow, step, and leave, with the peak they will reach.

An entry is *standing* (let in, not growing yet: a prompt being computed, a reservation whose KV is on its way, a
prompt that waits for its hand-over) or *growing* (it decodes: one slot a step). Standing entries keep `left` as it is
while steps go by, since their time has not begun; the peak counts them as if they began now.

        add ---> standing --- start ---> growing --- remove ---> gone
         \\________________________________________/    (remove works in either state)

Slots shared by several entries (the prompt of n choices) are a `share`: counted once, until the last of its members
leaves.

Invariants, checked by `check_integrity`: every live row is in the order exactly once; a share has at least one member;
the sums equal the sums over rows. Costs: add, start and remove O(1), a step O(standing entries), the first `curve`
after a change O(n); all vectorised.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from services.router.peak_memory import IntArray, PeakCurve

_INITIAL_ROWS = 64


class PeakLedger:
    """The Router's picture of the pool; also driven by simulations. One owner, no locks."""

    def __init__(self) -> None:
        self.now = 0
        """Steps of decoding since the start."""
        self._rows: dict[Hashable, int] = {}
        self._free: list[int] = list(range(_INITIAL_ROWS))
        # By row, in absolute steps (see `peak_memory`): nothing of a growing entry changes as it grows.
        self._base = np.zeros(_INITIAL_ROWS, dtype=np.int64)
        self._end = np.zeros(_INITIAL_ROWS, dtype=np.int64)
        self._growth = np.zeros(_INITIAL_ROWS, dtype=np.int64)
        self._live = np.zeros(_INITIAL_ROWS, dtype=np.bool_)
        self._standing: set[int] = set()
        """Rows that move along with the step, as if they began now."""
        self._order = np.zeros(0, dtype=np.int64)
        """Rows as they stood in the last curve, latest end first: nearly sorted input for the next one."""
        self._added: list[int] = []
        self._shares: dict[Hashable, _Share] = {}
        self._share_of: dict[Hashable, Hashable] = {}
        self._curve: PeakCurve | None = None
        self._base_sum = 0
        self._growth_sum = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._rows

    @property
    def held(self) -> int:
        """Slots occupied now."""
        return self._base_sum + self._growth_sum * self.now + sum(share.held for share in self._shares.values())

    def add(self, key: Hashable, held: int, left: int, growth: int = 1) -> int:
        """A standing entry. Returns its row, which is its until it is removed. Raises KeyError if it is there."""
        if key in self._rows:
            raise KeyError(f"{key!r} is in the ledger already")
        row = self._take_row()
        self._rows[key] = row
        self._base[row], self._end[row], self._growth[row] = held - growth * self.now, self.now + left, growth
        self._live[row] = True
        self._standing.add(row)
        self._added.append(row)
        self._count(row, 1)
        return row

    def start(self, key: Hashable) -> int:
        """A standing entry begins to grow at this step. Returns its row."""
        row = self._rows[key]
        if row not in self._standing:
            raise KeyError(f"{key!r} is growing already")
        self._standing.discard(row)
        return row

    def set_held(self, key: Hashable, held: int) -> None:
        """What the engine says an entry occupies now."""
        row = self._rows[key]
        self._count(row, -1)
        self._base[row] = held - int(self._growth[row]) * self.now
        self._count(row, 1)

    def set_left(self, rows: IntArray, left: IntArray) -> None:
        """New predictions, vectorised. rows, left: [k]."""
        self._end[rows] = self.now + left
        self._curve = None

    def row(self, key: Hashable) -> int:
        """The row of an entry. Raises KeyError if it is unknown."""
        return self._rows[key]

    def rows(self, *, overdue: bool = False) -> IntArray:
        """Rows of all entries, or only of those that grow although their end has come."""
        if not overdue:
            return np.flatnonzero(self._live)
        late = np.flatnonzero(self._live & (self._end <= self.now))
        return np.array([row for row in late.tolist() if row not in self._standing], dtype=np.int64)

    def remove(self, key: Hashable) -> None:
        """The entry frees what it held; its share stays while other members live. Raises KeyError if unknown."""
        row = self._rows.pop(key)
        self._count(row, -1)
        self._standing.discard(row)
        self._live[row] = False
        if self._added and self._added[-1] == row:
            self._added.pop()
            self._free.append(row)
        self._leave_share(key)

    def advance(self, steps: int = 1) -> None:
        """Every growing entry grew for this many steps."""
        self.now += steps
        if self._standing:
            rows = np.fromiter(self._standing, dtype=np.int64, count=len(self._standing))
            self._end[rows] += steps
            self._base[rows] -= self._growth[rows] * steps
            self._base_sum -= steps * int(self._growth[rows].sum())
            self._curve = None

    def share(self, name: Hashable, held: int, members: list[Hashable]) -> None:
        """Slots that all members use together, beyond their own. Raises KeyError when a member is unknown."""
        for member in members:
            _ = self._rows[member]
            self._share_of[member] = name
        self._shares[name] = _Share(held, set(members))
        self._curve = None

    def curve(self) -> PeakCurve:
        """The occupancy to come, as it stands now."""
        if self._curve is None:
            self._curve = self._build_curve()
        elif self._curve.now != self.now:
            self._curve = self._curve.at(self.now)
        return self._curve

    def check_integrity(self) -> None:
        """Raises AssertionError where an invariant does not hold."""
        rows = np.fromiter(self._rows.values(), dtype=np.int64, count=len(self._rows))
        ordered = np.concatenate((self._order, np.array(self._added, dtype=np.int64)))
        assert sorted(rows) == sorted(ordered[self._live[ordered]]), "live rows and order differ"
        assert sorted((*ordered, *self._free)) == list(range(len(self._live))), "a row is lost or free twice"
        assert int(self._base[rows].sum()) == self._base_sum, "sum of bases is wrong"
        assert int(self._growth[rows].sum()) == self._growth_sum, "sum of growth is wrong"
        assert self._standing <= set(rows.tolist()), "an entry stands that is gone"
        for name, share in self._shares.items():
            assert share.members, f"share {name!r} has no member"
            assert share.members <= self._rows.keys(), f"share {name!r} has a member that is gone"

    def _count(self, row: int, sign: int) -> None:
        """Put a row into the sums, or take it out: before and after every change of it."""
        self._base_sum += sign * int(self._base[row])
        self._growth_sum += sign * int(self._growth[row])
        self._curve = None

    def _build_curve(self) -> PeakCurve:
        rows = self._take_order()
        ends = self._end[rows]
        order = np.argsort(-ends, kind="stable")
        self._order = rows = rows[order]
        ends, base, growth = ends[order], self._base[rows], self._growth[rows]
        return (
            self._with_shares(ends, base, growth)
            if self._shares
            else PeakCurve.from_sorted(self.now, ends, base, growth)
        )

    def _with_shares(self, ends: IntArray, base: IntArray, growth: IntArray) -> PeakCurve:
        """Each share as one more entry that does not grow and ends with its last member."""
        last = [
            int(self._end[[self._rows[member] for member in share.members]].max()) for share in self._shares.values()
        ]
        held = [share.held for share in self._shares.values()]
        ends = np.concatenate((ends, np.array(last, dtype=np.int64)))
        order = np.argsort(-ends, kind="stable")
        base = np.concatenate((base, np.array(held, dtype=np.int64)))[order]
        growth = np.concatenate((growth, np.zeros(len(held), dtype=np.int64)))[order]
        return PeakCurve.from_sorted(self.now, ends[order], base, growth)

    def _take_order(self) -> IntArray:
        """Live rows, nearly sorted; rows of entries that left become free here, when no order names them any more."""
        rows = np.concatenate((self._order, np.array(self._added, dtype=np.int64)))
        alive = self._live[rows]
        self._free.extend(rows[~alive].tolist())
        self._added.clear()
        return rows[alive]

    def _take_row(self) -> int:
        if not self._free:
            self._order = self._take_order()
        if not self._free:
            old = len(self._base)
            self._base, self._end, self._growth = (
                np.concatenate((array, np.zeros(old, dtype=np.int64)))
                for array in (self._base, self._end, self._growth)
            )
            self._live = np.concatenate((self._live, np.zeros(old, dtype=np.bool_)))
            self._free.extend(range(old, 2 * old))
        return self._free.pop()

    def _leave_share(self, key: Hashable) -> None:
        name = self._share_of.pop(key, None)
        if name is None:
            return
        share = self._shares[name]
        share.members.discard(key)
        if not share.members:
            del self._shares[name]


class _Share:
    """Slots that several entries use together."""

    __slots__ = ("held", "members")

    def __init__(self, held: int, members: set[Hashable]) -> None:
        self.held = held
        self.members = members
