"""One step's work as arrays: decode rows first, then chunks of prompts."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from services.engine.arrays import Bools, Indexes, Ints
from services.engine.decode_group import DecodeGroup
from services.engine.jobs import Job, Sequence
from services.engine.rows import NO_WRITES

_NONE: Ints = np.empty(0, np.int32)


class Chunk(NamedTuple):
    """Consecutive prompt tokens of one job, computed in one step."""

    job: Job
    row: int
    start: int
    """Position of the first token; everything before it is in the row's slots already."""
    length: int

    @property
    def end(self) -> int:
        """Context length after the chunk."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Scored:
    """Prompt tokens of one chunk whose log-probabilities are asked for, by the tokens before them."""

    job: Job
    first: int
    """Prompt position of the first scored token."""
    rows: slice
    """Where the tokens before them stand in the batch."""
    targets: Ints
    """[len(rows)]: their ids."""
    num_top: int


@dataclass(slots=True)
class Sample:
    """One token to sample: from which logits row, for which sequence, at which output position."""

    sequence: Sequence
    logits_row: int
    position: int


@dataclass(slots=True)
class Batch:
    """What the runner launches. Tokens stand in the order decode rows, then chunks; so do samples: row i of the logits
    is decode row i's, then come `first_samples`, from the ends of prompts, which several may share.

    With B decode rows, C chunks and T tokens: arrays are int32 of the lengths that their comments say.
    """

    step: int
    input_ids: Ints  # [T], FROM_DEVICE where the device knows
    decode: DecodeGroup
    context_lens: Ints  # [B]: with the token itself
    output_positions: Ints = field(default_factory=lambda: _NONE)  # [B]: of the sampled tokens
    ends: Bools = field(default_factory=lambda: np.empty(0, np.bool_))  # [B]: where it is the sequence's last
    chunks: list[Chunk] = field(default_factory=list)
    first_samples: list[Sample] = field(default_factory=list)
    logits_tokens: Ints = field(default_factory=lambda: _NONE)  # [R]: tokens whose logits are needed
    scored: list[Scored] = field(default_factory=list)
    table_writes: Ints = field(default_factory=lambda: NO_WRITES)  # since the batch before, as of `Rows.take_writes`

    @property
    def decode_rows(self) -> Indexes:
        """[B]: request rows, ascending."""
        return self.decode.rows

    @property
    def sequences(self) -> list[Sequence]:
        """[B]: of the decode rows."""
        return self.decode.sequences

    def samples(self) -> list[Sample]:
        """Every token to sample. Hundreds of decode rows are better read as arrays."""
        positions = self.output_positions.tolist()
        return [*map(Sample, self.sequences, range(len(positions)), positions), *self.first_samples]

    def finished_prompts(self) -> list[Job]:
        """Jobs whose last chunk this is."""
        return [chunk.job for chunk in self.chunks if chunk.end == len(chunk.job.tokens)]

    def positions(self) -> Ints:
        """[T]: each token's in its request."""
        return np.concatenate((self.context_lens - 1, self.prompt_positions()))

    def out_slots(self, table: Ints) -> Ints:
        """[T]: where each token's K and V go, by `Rows.table` as it is while the batch is launched."""
        return np.concatenate((table[self.decode_rows, self.context_lens - 1], self.prompt_slots(table)))

    def prompt_positions(self) -> Ints:
        """[T - B]: as `positions`, of the chunks alone."""
        return np.concatenate([_NONE, *(np.arange(each.start, each.end, dtype=np.int32) for each in self.chunks)])

    def prompt_slots(self, table: Ints) -> Ints:
        """[T - B]: as `out_slots`, of the chunks alone."""
        return np.concatenate([_NONE, *(table[each.row, each.start : each.end] for each in self.chunks)])

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return len(self.input_ids)

    @property
    def num_decode_rows(self) -> int:
        """Rows that decode one token."""
        return len(self.decode_rows)

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens computed."""
        return self.num_tokens - self.num_decode_rows
