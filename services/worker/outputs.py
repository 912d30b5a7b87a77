"""One choice's output on this worker: engine tokens in, deltas out, kept until its master has all (R7, R15).

The log is what a delta is cut from. A master's session remembers how far it has sent; what a slow stream could not take
is merged by cutting one longer delta, and a resumed session cuts from the index that the master names. Text is a pure
function of the ids (R9): output that earlier attempts produced is replayed silently first.
"""

import enum

from services.common.ipc import SequenceOutput
from services.common.request import Delta, Finish, FinishReason, Request, TokenLogprob
from services.common.text import TextStream, Vocabulary


class Taken(enum.Enum):
    """What a step's output did to the choice."""

    GOES_ON = "goes on"
    ENDED = "ended"
    """By the engine itself."""
    CUT = "cut"
    """By a stop string that the engine does not know of: tell it with Finish (R10)."""


class ChoiceOutput:
    """Owned by one attempt in the worker's control process. Output positions count from the request's first token."""

    def __init__(
        self, vocabulary: Vocabulary, request: Request, choice: int, output_ids: list[int], eos_ids: tuple[int, ...]
    ) -> None:
        self._choice = choice
        self._request = request
        self._own_end = frozenset(eos_ids) - frozenset(request.stop.stop_token_ids)
        self._text = TextStream(vocabulary, request.stop, request.text)
        self._text.push(output_ids)
        self._first = len(output_ids)
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprob] | None = None if request.sampling.num_logprobs is None else []
        self._tail = ""
        self.finish: Finish | None = None

    @property
    def next_index(self) -> int:
        """Output position of the next token."""
        return self._first + len(self._ids)

    @property
    def output_ids(self) -> list[int]:
        """The ids that this worker produced, from position `len(output_ids)` of the attempt on."""
        return self._ids

    def take(self, output: SequenceOutput) -> Taken | None:
        """Append a step's tokens. None: all of them are known already or lie beyond the end."""
        skip = self.next_index - output.first_index
        token_ids = output.token_ids[skip:] if skip else output.token_ids
        if self.finish is not None or (not token_ids and output.finish is None):
            return None
        assert skip >= 0, "the engine left out tokens"
        silent = output.stop_token_id is not None and not self._shows_end(output.stop_token_id)
        shown = len(token_ids) - 1 if silent else len(token_ids)
        for token in token_ids[:shown]:
            self._pieces.append(self._text.push_one(token))
            self._ids.append(token)
            if self._text.match is not None:
                break
        if self._text.match is None and silent:
            self._pieces.append("")
            self._ids.append(token_ids[-1])
        if self._logprobs is not None:
            self._append_logprobs(output, skip)
        if output.finish is None and self._text.match is None:
            return Taken.GOES_ON
        return self._end(output)

    def _shows_end(self, token_id: int) -> bool:
        stop = self._request.stop
        return stop.include_stop_string or (stop.include_eos and token_id in self._own_end)

    def _append_logprobs(self, output: SequenceOutput, skip: int) -> None:
        if self._logprobs is not None and output.logprobs is not None:
            self._logprobs += output.logprobs[skip:]
            del self._logprobs[len(self._ids) :]

    def _end(self, output: SequenceOutput) -> Taken:
        match = self._text.match
        if match is not None:
            self.finish = Finish(FinishReason.STOP, self.next_index, match.stop_string)
            return Taken.CUT if output.finish is None else Taken.ENDED
        assert output.finish is not None
        self._tail = self._text.close()
        reason = None if output.stop_token_id in self._own_end else output.stop_token_id
        self.finish = Finish(output.finish, self.next_index, reason)
        return Taken.ENDED

    def since(self, index: int) -> Delta | None:
        """All from an output position on; None when there is nothing. The finish goes with the last token, or alone."""
        start = max(0, index - self._first)
        if start >= len(self._ids) and self.finish is None:
            return None
        pieces = self._pieces[start:]
        return Delta(
            choice=self._choice,
            first_index=self._first + min(start, len(self._ids)),
            token_ids=self._ids[start:],
            text="".join(pieces) + self._tail,
            logprobs=None if self._logprobs is None else self._logprobs[start:],
            finish=self.finish,
            text_lengths=tuple([len(piece) for piece in pieces]),
        )
