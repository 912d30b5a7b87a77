"""Log-probabilities of a prompt's own tokens, packed from the engine to the API: long prompts have many of them.

They are of the raw logits, before temperature and penalties. The token at position 0 follows nothing and has none.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

_BYTES = 4
"""Of an int32 and of a float32."""


class ScoredToken(NamedTuple):
    """One prompt token after those before it."""

    logprob: float
    rank: int
    """1 for the likeliest token there."""
    top: list[tuple[int, float]]
    """The most likely (token id, logprob), best first."""


class PromptLogprobs(msgspec.Struct, frozen=True):
    """Of n consecutive prompt tokens, with the k most likely tokens in the place of each. All little-endian."""

    first: int
    """Prompt position of the first of them, at least 1."""
    num_top: int
    logprobs: bytes
    """[n] float32: the prompt token's own."""
    ranks: bytes
    """[n] int32: the prompt token's place among all, from 1."""
    top_ids: bytes
    """[n, k] int32: best first."""
    top_logprobs: bytes
    """[n, k] float32."""

    def __repr__(self) -> str:
        """Without the numbers, which may be many."""
        return f"PromptLogprobs(first={self.first}, end={self.end}, num_top={self.num_top})"

    @property
    def end(self) -> int:
        """Prompt position behind the last of them."""
        return self.first + len(self.logprobs) // _BYTES

    def since(self, position: int) -> "PromptLogprobs":
        """Without those before a position, which is not before `first`."""
        one, wide = (position - self.first) * _BYTES, (position - self.first) * _BYTES * self.num_top
        return PromptLogprobs(
            position, self.num_top, self.logprobs[one:], self.ranks[one:], self.top_ids[wide:], self.top_logprobs[wide:]
        )

    def __iter__(self) -> Iterator[ScoredToken]:
        """One after the other."""
        n, k = len(self.logprobs) // _BYTES, self.num_top
        ids, values = _ints(self.top_ids), _floats(self.top_logprobs)
        for i, (logprob, rank) in enumerate(zip(_floats(self.logprobs), _ints(self.ranks), strict=True)):
            yield ScoredToken(logprob, rank, list(zip(ids[i * k : i * k + k], values[i * k : i * k + k], strict=True)))
        assert len(ids) == len(values) == n * k


class PromptScores:
    """A prompt's log-probabilities as its chunks come in; chunks that come again, from another computation, are left
    out."""

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self._num_top = num_top
        self._end = num_prompt_tokens
        self._next = 1
        self._parts: list[PromptLogprobs] = []

    @property
    def is_complete(self) -> bool:
        """Whether every token but the first has its own."""
        return self._next >= self._end

    def take(self, part: PromptLogprobs) -> None:
        """Append a chunk, which begins no later than the ones before it end."""
        assert part.first <= self._next, "log-probabilities of prompt tokens were left out"
        if part.end > self._next:
            self._parts.append(part.since(self._next))
            self._next = part.end

    def whole(self) -> PromptLogprobs:
        """All of them, once they are complete."""
        assert self.is_complete
        parts = self._parts
        if len(parts) != 1:  # joined for good, so that their bytes are not held twice
            self._parts = [
                PromptLogprobs(
                    1,
                    self._num_top,
                    b"".join([part.logprobs for part in parts]),
                    b"".join([part.ranks for part in parts]),
                    b"".join([part.top_ids for part in parts]),
                    b"".join([part.top_logprobs for part in parts]),
                )
            ]
        return self._parts[0]


def _ints(packed: bytes) -> Sequence[int]:
    return struct.unpack(f"<{len(packed) // _BYTES}i", packed)


def _floats(packed: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(packed) // _BYTES}f", packed)
