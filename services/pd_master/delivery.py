"""One choice's output as its client gets it: strictly by index, each token once (R6).

Deltas may come again (a resumed session, a decode worker repeating token 0) and from two attempts at once (a drain).
What is known already must be equal, since a new attempt continues as the old one would have (R9); where it is not, the
attempt that says otherwise is wrong for this client and has to go.
"""

import enum
from dataclasses import dataclass, field

import msgspec

from services.common.request import Delta, Finish


class Fault(enum.Enum):
    """Why a delta cannot be taken."""

    GAP = "tokens are missing before it"
    DIVERGED = "it differs from what was delivered"


@dataclass(slots=True)
class Choice:
    """Owned by one request in the master. States: running -> finished, when every token its finish counts is
    delivered."""

    index: int
    output_ids: list[int] = field(default_factory=list)
    """What has been delivered: the next attempt starts behind it."""
    finish: Finish | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the client has it in full."""
        return self.finish is not None

    @property
    def next_index(self) -> int:
        """Output position of the first token that is missing."""
        return len(self.output_ids)

    def take(self, delta: Delta) -> Delta | Fault | None:
        """Return what of the delta is new, for the client; None when nothing is."""
        if self.finish is not None:
            return None
        known = len(self.output_ids) - delta.first_index
        if known < 0:
            return Fault.GAP
        if known:
            cut = self._behind(delta, known)
            if not isinstance(cut, Delta):
                return cut
            delta = cut
        self.output_ids += delta.token_ids
        return self._end(delta) if delta.finish is not None else delta

    def _behind(self, delta: Delta, known: int) -> Delta | Fault | None:
        overlap = delta.token_ids[:known]
        if overlap != self.output_ids[delta.first_index : delta.first_index + len(overlap)]:
            return Fault.DIVERGED
        if len(delta.token_ids) <= known and delta.finish is None:
            return None
        if len(overlap) < known:  # it ends before what is known: a finish at an earlier token than another attempt's
            return Fault.DIVERGED
        return without_first(delta, known)

    def _end(self, delta: Delta) -> Delta | Fault:
        assert delta.finish is not None
        missing = delta.finish.num_output_tokens - len(self.output_ids)
        if missing:
            del self.output_ids[len(self.output_ids) - len(delta.token_ids) :]
            return Fault.GAP if missing > 0 else Fault.DIVERGED
        self.finish = delta.finish
        return delta


def without_first(delta: Delta, count: int) -> Delta:
    """Cut the first tokens off, with the text and the log-probabilities that are theirs."""
    return msgspec.structs.replace(
        delta,
        first_index=delta.first_index + count,
        token_ids=delta.token_ids[count:],
        text=delta.text[sum(delta.text_lengths[:count]) :],
        text_lengths=delta.text_lengths[count:],
        logprobs=None if delta.logprobs is None else delta.logprobs[count:],
    )


def merge_all(deltas: list[Delta]) -> Delta:
    """Join deltas of one choice that follow each other; only the last may carry a finish (R15)."""
    if len(deltas) == 1:
        return deltas[0]
    has_logprobs = any(delta.logprobs is not None for delta in deltas)
    return Delta(
        deltas[0].choice,
        deltas[0].first_index,
        [token for delta in deltas for token in delta.token_ids],
        "".join([delta.text for delta in deltas]),
        [one for delta in deltas for one in delta.logprobs or []] if has_logprobs else None,
        deltas[-1].finish,
        tuple([length for delta in deltas for length in delta.text_lengths]),
    )
