"""The whole output of a request, gathered choice by choice, for answers that are not streamed."""

import dataclasses
from collections.abc import AsyncIterable

from services.common.request import Delta, Finish, FinishReason, TokenLogprob


@dataclasses.dataclass(slots=True)
class Choice:
    """One sequence's output so far."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)
    token_texts: list[str] = dataclasses.field(default_factory=list)
    """The same text token by token; what an end without a token of its own released is in none of them."""
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    finish: Finish | None = None

    @property
    def text(self) -> str:
        """All visible text."""
        return "".join(self.texts)

    @property
    def parts(self) -> list[str]:
        """All visible text, token by token, and what the end released."""
        return [*self.token_texts, self.text[sum(map(len, self.token_texts)) :]]

    @property
    def finish_reason(self) -> str:
        """In the words of the APIs; a choice without an end was cut off."""
        return (self.finish.reason if self.finish else FinishReason.ABORT).value

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or token id that matched."""
        return self.finish.stop_reason if self.finish else None

    def add(self, delta: Delta) -> None:
        """Append the next tokens."""
        self.token_ids += delta.token_ids
        self.texts.append(delta.text)
        self.token_texts += spread(delta)
        if delta.logprobs:
            self.logprobs += delta.logprobs
        if delta.finish is not None:
            self.finish = delta.finish


def spread(delta: Delta) -> list[str]:
    """A delta's text over its tokens, for wires that send tokens one by one; what was held back is with the last."""
    if len(delta.token_ids) <= 1:
        return [delta.text] if delta.token_ids else []
    lengths = delta.text_lengths or (0,) * len(delta.token_ids)
    texts = []
    start = 0
    for length in lengths[:-1]:
        texts.append(delta.text[start : start + length])
        start += length
    return [*texts, delta.text[start:]]


def parts_of(delta: Delta) -> list[str]:
    """A delta's text token by token; one part when its end came without a token."""
    return spread(delta) or [delta.text]


async def gather(batches: AsyncIterable[list[Delta]], num_choices: int) -> list[Choice]:
    """All choices, in order of their numbers. Raises SluiceError when the request fails."""
    choices = [Choice() for _ in range(num_choices)]
    async for deltas in batches:
        for delta in deltas:
            choices[delta.choice].add(delta)
    return choices
