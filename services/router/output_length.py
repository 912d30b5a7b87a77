"""How many more tokens each sequence will produce: a quantile of recent output lengths, given what it has produced.

Past-Future scheduling (ASPLOS'25, arXiv 2507.10150) with four points made precise.

- Each sequence keeps a place `unit` in (0, 1) for life, spread evenly over sequences, and is predicted at its own
  level around the current one. If all were predicted at the same level, all would seem to end together, which they
  never do: the peak of a large batch would be overestimated by far. A place for life also keeps predictions from
  jumping between decisions.
- The evidence is a life table (see `survival`): running sequences are in it as censored ones.
- Evidence is kept for all, and by key (a caller, a route, a priority) where a key has enough of its own.
- Where few sequences were seen to get as far as this one, the table is not used: the total is then
  min(max_new_tokens, max(prior, 2 * produced)). Nothing else switches the rule, occupancy least of all.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.router.peak_memory import IntArray
from services.router.survival import FloatArray, SurvivalCurve

_GOLDEN = 0.6180339887498949
ALL = 0
"""The group of everything."""


@dataclass(frozen=True, slots=True)
class LengthConfig:
    """What the prediction may be told."""

    window: int = 2048
    """Ended outputs that are remembered, in all and for each key."""
    prior_tokens: int = 512
    """Assumed output length while evidence is thin."""
    min_evidence: int = 24
    """Sequences that must have been seen to get as far, for the table to be believed there."""
    min_key_evidence: int = 128
    """Ended outputs of a key from which on its own table is used."""
    max_keys: int = 64
    """Keys remembered; the one unused for longest is forgotten."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences to predict, as arrays [n]."""

    produced: IntArray
    min_new: IntArray
    max_new: IntArray
    unit: FloatArray
    """Place in (0, 1) of each, for life (`place_of`)."""
    group: IntArray
    """What `OutputLengths.group` answered."""


def place_of(number: int) -> float:
    """The place of the `number`-th sequence: golden-ratio steps fill (0, 1) evenly however many there are."""
    return (0.5 + number * _GOLDEN) % 1.0


def levels(level: float, unit: FloatArray) -> FloatArray:
    """[n] each sequence's own quantile: mean `level`, spread as far as fits between 0 and 1, by `unit`."""
    own = level + (2.0 * unit - 1.0) * min(level, 1.0 - level)
    return np.minimum(np.maximum(own, 1e-6), 1.0 - 1e-6)


class OutputLengths:
    """What a worker knows of output lengths. Kept by its Router; steps are decode steps, on one scale."""

    def __init__(self, config: LengthConfig) -> None:
        self._config = config
        self._keys: OrderedDict[str, int] = OrderedDict()
        self._unused_groups = list(range(config.max_keys, 0, -1))
        self._windows: dict[int, _Window] = {ALL: _Window(config.window)}
        self._curves: dict[int, SurvivalCurve] = {}

    def group(self, key: str) -> int:
        """The group of a key; ALL for the empty key. The group of a key unused for long may pass to another."""
        if not key:
            return ALL
        if key not in self._keys:
            self._keys[key] = self._unused_groups.pop() if self._unused_groups else self._forget_oldest()
            self._windows[self._keys[key]] = _Window(self._config.window)
        self._keys.move_to_end(key)
        return self._keys[key]

    def observe(self, length: int, now: int, group: int = ALL, *, natural: bool) -> None:
        """One output ended at step `now` with `length` tokens. natural: by its own end, not by a limit or an abort."""
        for name in {ALL, group} & self._windows.keys():
            self._windows[name].add(length, now, natural)

    def refresh(self, produced: IntArray, group: IntArray, now: int) -> None:
        """Rebuild the tables with the running sequences as they stand. Sorts window + n: not for every step."""
        self._curves = {ALL: self._windows[ALL].curve(produced, now)}
        for name, window in self._windows.items():
            if name != ALL and len(window) >= self._config.min_key_evidence:
                self._curves[name] = window.curve(produced[group == name], now)

    def remaining(self, sequences: Sequences, level: float) -> IntArray:
        """[n] tokens that each will still produce, around quantile `level`; at least 1 until its limit is reached."""
        own_level = levels(level, sequences.unit)
        if len(self._curves) <= 1:
            total = self._total(self._curves.get(ALL), sequences.produced, own_level)
        else:
            total = self._total_by_group(sequences, own_level)
        total = np.maximum(total, np.maximum(sequences.min_new, sequences.produced + 1))
        left: IntArray = np.maximum(np.minimum(total, sequences.max_new) - sequences.produced, 0)
        return left

    def _total_by_group(self, sequences: Sequences, level: FloatArray) -> IntArray:
        has_table = np.zeros(self._config.max_keys + 1, dtype=np.bool_)
        has_table[list(self._curves)] = True
        table_of = np.where(has_table[sequences.group], sequences.group, ALL)
        total = np.empty_like(sequences.produced)
        for name in np.unique(table_of).tolist():
            chosen = table_of == name
            total[chosen] = self._total(self._curves[name], sequences.produced[chosen], level[chosen])
        return total

    def _total(self, curve: SurvivalCurve | None, produced: IntArray, level: FloatArray) -> IntArray:
        prior = np.maximum(self._config.prior_tokens, 2 * produced)
        if curve is None:
            return prior
        total, evidence = curve.quantile(level, produced)
        return np.where(evidence >= self._config.min_evidence, total, prior)

    def _forget_oldest(self) -> int:
        _, name = self._keys.popitem(last=False)
        self._curves.pop(name, None)
        return name


class _Window:
    """The last ended outputs, and since when they are complete."""

    def __init__(self, size: int) -> None:
        self._ended: deque[tuple[int, int, bool]] = deque(maxlen=size)
        """(length, step of the end, natural)"""
        self._complete_since: int | None = None
        """The step after which every end is in the window; None: since ever."""

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, length: int, now: int, natural: bool) -> None:
        if len(self._ended) == self._ended.maxlen:
            self._complete_since = self._ended[0][1]
        self._ended.append((length, now, natural))

    def curve(self, running: IntArray, now: int) -> SurvivalCurve:
        """The life table of the window's period; `running` are the produced counts of what runs now."""
        ended = np.array(self._ended, dtype=np.int64).reshape(-1, 3)
        length = np.concatenate((ended[:, 0], running))
        last_seen = np.concatenate((ended[:, 1], np.full(len(running), now, dtype=np.int64)))
        natural: npt.NDArray[np.bool_] = np.concatenate((ended[:, 2] != 0, np.zeros(len(running), dtype=np.bool_)))
        if self._complete_since is None:
            entry = np.zeros_like(length)
        else:
            # A sequence gains one token a step, so this many it had when the period began.
            entry = np.clip(length - (last_seen - self._complete_since), 0, length)
        return SurvivalCurve.of(length, entry, natural)
