"""How decode rows are sampled, as arrays by request row: a step over hundreds of rows packs them without a loop.

A row's parameters are read once, when a sequence is first seen in it. Only rows with a grammar, rows whose logits may
have to be edited, and those whose log-probabilities are asked for, are looked at one by one.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray

from services.engine.arrays import Ints
from services.engine.backends.cuda.row_masks import Guided, MaskBlocks
from services.engine.backends.cuda.sampler import FIELDS, Draw, Draws, fields_of, guided_by, pack_rows, packed_draws
from services.engine.backends.cuda.staging import Staging
from services.engine.batch import Batch
from services.engine.jobs import Sequence
from services.engine.noise import noise_keys
from services.engine.sampling_rules import SequenceRules, rules_of


class _Kind(IntEnum):
    """PLAIN: the argmax, which the decode graph has found; DIRECT: drawn from the logits; GUIDED: likewise, under a
    grammar; SPECIAL: ask its rules."""

    PLAIN = 0
    DIRECT = 1
    GUIDED = 2
    SPECIAL = 3


class RowDraws:
    """Owned by the runner; remembers the last sequence of each request row."""

    def __init__(self, num_rows: int, vocab: int, masks: MaskBlocks, device: torch.device) -> None:
        self._vocab, self._device, self._masks = vocab, device, masks
        self._seen: list[Sequence | None] = [None] * num_rows
        self._last: list[Sequence] = []
        """Of the batch before: while the same sequences decode there is nothing to learn."""
        self._guided: Guided | None = None
        """The rows under grammars, drawn directly: of the batch before, until it changes."""
        self._kinds = np.zeros(num_rows, np.int8)
        self._fields: Ints = np.zeros((FIELDS, num_rows), np.int32)
        self._keys = np.zeros(num_rows, np.uint64)

    def stage(self, batch: Batch, staging: Staging) -> Draws | None:
        """Pack what the batch's decode rows need beyond the argmax; sample i draws output i from row i."""
        rows = batch.decode_rows
        if batch.sequences is not self._last:  # the same list while nobody joins or leaves
            for row, sequence in zip(rows.tolist(), batch.sequences, strict=True):
                if self._seen[row] is not sequence:
                    self._learn(row, sequence)
            self._last, self._guided = batch.sequences, None
        kinds = self._kinds[rows]
        if not kinds.any():
            return None
        edits: list[Draw] = []
        for i in np.flatnonzero(kinds == _Kind.SPECIAL).tolist():
            draw = self._draw(batch, i)
            if draw.rules.edits(draw.position) or draw.rules.params.num_logprobs is not None:
                edits.append(draw)
            else:
                kinds[i] = _kind(draw.rules)
        guided = self._guided_rows(batch, np.flatnonzero(kinds == _Kind.GUIDED))
        direct = np.flatnonzero((kinds == _Kind.DIRECT) | (kinds == _Kind.GUIDED)).astype(np.int32)
        drawn = None
        if len(direct):
            keys = noise_keys(self._keys[rows[direct]], batch.output_positions[direct].astype(np.uint64))
            drawn = pack_rows(self._fields[:, rows[direct]], keys, direct, direct, staging)
        return packed_draws(drawn, guided, edits, 0, staging, self._masks)

    def _guided_rows(self, batch: Batch, rows: NDArray[np.intp]) -> Guided | None:
        if not len(rows):
            return None
        if self._guided is None or not np.array_equal(self._guided.rows, rows):  # some may have been edited before
            self._guided = guided_by([self._draw(batch, i) for i in rows.tolist()])
        return self._guided

    def _draw(self, batch: Batch, i: int) -> Draw:
        rules = rules_of(batch.sequences[i], self._vocab, self._device)
        return Draw(rules, int(batch.output_positions[i]), i, i)

    def _learn(self, row: int, sequence: Sequence) -> None:
        rules = rules_of(sequence, self._vocab, self._device)
        special = rules.may_edit or rules.params.num_logprobs is not None
        kind = _Kind.SPECIAL if special else _kind(rules)
        self._seen[row], self._kinds[row] = sequence, kind
        if kind is _Kind.PLAIN:
            return
        self._fields[:, row] = fields_of([rules.params])[:, 0]
        self._keys[row] = rules.sequence_key


def _kind(rules: SequenceRules) -> _Kind:
    """Of a row whose logits are not edited."""
    if rules.matcher is not None:
        return _Kind.GUIDED
    return _Kind.PLAIN if rules.params.temperature == 0 else _Kind.DIRECT
