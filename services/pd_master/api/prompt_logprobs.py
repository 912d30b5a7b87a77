"""`prompt_logprobs` of answers, in the form that vLLM and LightLLM share: per prompt token an object by token id, the
token's own first; null for the first token, which follows nothing."""

from typing import TypeAlias, TypedDict

from services.common.prompt_logprobs import PromptLogprobs, ScoredToken
from services.common.text import Vocabulary

LOWEST = -9999.0
"""JSON has no infinity; OpenAI shows a probability of zero so."""


class RankedToken(TypedDict):
    """A token in the place of a prompt's; `rank` is 1 for the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


ShownPrompt: TypeAlias = list[dict[str, RankedToken] | None]


def shown_prompt(prompt_ids: list[int], logprobs: PromptLogprobs, num_top: int, vocabulary: Vocabulary) -> ShownPrompt:
    """One entry a prompt token, with its `num_top` most likely rivals."""
    shown: ShownPrompt = [None]
    for token, one in zip(prompt_ids[1:], logprobs, strict=True):
        shown.append(_entry(token, one, num_top, vocabulary))
    return shown


def _entry(token: int, one: ScoredToken, num_top: int, vocabulary: Vocabulary) -> dict[str, RankedToken]:
    ranked = [(token, one.logprob, one.rank)]
    ranked += [(other, value, at) for at, (other, value) in enumerate(one.top[:num_top], 1) if other != token]
    return {
        str(each): {
            "logprob": max(value, LOWEST),
            "rank": rank,
            "decoded_token": vocabulary.piece(each).decode("utf-8", errors="replace"),
        }
        for each, value, rank in ranked
    }
