"""The body of `POST /v1/completions`."""

from typing import Annotated, TypeAlias, TypeVar

from msgspec import Meta

from services.common.errors import InvalidRequestError
from services.pd_master.api.openai.fields import Count, GenerationFields, TopLogprobs

Prompt: TypeAlias = str | list[int]
"""Text, or token ids."""

T = TypeVar("T")
Filled: TypeAlias = Annotated[T, Meta(min_length=1)]

MAX_PROMPTS = 128


class CompletionBody(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """All that a completion request may hold."""

    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    """0 generates nothing: what is asked for is the prompt, by `echo` or `prompt_logprobs`."""
    prompt: Filled[str] | Filled[list[Filled[str] | int | Filled[list[int]]]]
    echo: bool | None = None
    logprobs: TopLogprobs | None = None
    best_of: Count | None = None
    suffix: str | None = None


def prompts_of(body: CompletionBody) -> list[Prompt]:
    """One prompt or several: a string, strings, token ids, or lists of them. Raises InvalidRequestError (`prompt`)."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if len(kinds) != 1:
        raise InvalidRequestError("prompt: strings, token ids and lists of token ids do not mix", param="prompt")
    if int in kinds:
        return [[token for token in prompt if isinstance(token, int)]]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt: {len(prompt)} prompts are more than {MAX_PROMPTS}", param="prompt")
    return [one for one in prompt if not isinstance(one, int)]
