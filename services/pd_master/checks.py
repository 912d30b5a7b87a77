"""Checks and defaults that every API's requests go through, whatever their wire."""

import random
from collections.abc import Collection
from typing import Any

from services.common.config import GatewayConfig
from services.common.errors import ContextLengthError, InvalidRequestError
from services.pd_master.backend import ServedModel
from services.pd_master.gateway import Target
from services.pd_master.model_text import ModelText
from services.pd_master.selector import output_room

_RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}

MAX_BAD_TOKENS = 64
"""Of one sequence that must not come."""

MAX_PROMPT_LOGPROBS = 1 << 18
"""Values of one answer, all prompts of its call together: 2 MiB between pods, some 20 MiB as JSON, and a quarter of a
second to write that."""

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as everywhere in the field."""


def choice_count(wanted: int | None, config: GatewayConfig, *, param: str) -> int:
    """How many sequences to generate. Raises InvalidRequestError beyond the gateway's limit."""
    count = wanted or 1
    if count > config.max_choices:
        problem = f"{count} is more than the {config.max_choices} of --max-choices"
        raise InvalidRequestError(f"{param}: {problem}", param=param)
    return count


def fit_output(
    num_prompt_tokens: int, wanted: int | None, target: Target, *, param: str, num_choices: int = 1,
    default: int | None = None,
) -> int:  # fmt: skip
    """Tokens to generate at most: what was asked for, or `default`, or all that fits the context and the KV pools.

    Raises ContextLengthError (`param`) for what was asked for and does not fit the context; what does not fit any pool
    is refused where workers are chosen.
    """
    context = target.model.max_context_tokens
    room = context - num_prompt_tokens
    if wanted is None:
        if num_slots := target.num_slots:  # else nobody decodes now, which is said where workers are chosen
            room = min(room, max(output_room(num_prompt_tokens, num_choices, num_slots), 1))
        return room if default is None else min(room, default)
    if wanted > room:
        raise ContextLengthError(
            f"{param}: {num_prompt_tokens} prompt tokens and {wanted} new ones do not fit the model's context "
            f"of {context} tokens",
            param=param,
        )
    return wanted


def temperature_of(value: float | None) -> float:
    """0 for greedy; the API's default is 1."""
    if value is None:
        return 1.0
    return 0.0 if value < GREEDY_BELOW else value


def seed_of(value: int | None) -> int:
    """64 bits: the client's, or drawn, so that every attempt of this request repeats the same noise (R9)."""
    return random.getrandbits(64) if value is None else value & (2**64 - 1)


def check_ids(ids: Collection[int], model: ServedModel, param: str) -> None:
    """Raises InvalidRequestError naming `param` for an id that the model does not have."""
    for worst in (min(ids), max(ids)) if ids else ():
        if not 0 <= worst < model.vocab_size:
            raise InvalidRequestError(
                f"{param}: token id {worst} is outside the model's vocabulary of {model.vocab_size}", param=param
            )


def bad_sequences(words: Collection[str], text: ModelText, param: str) -> tuple[tuple[int, ...], ...]:
    """The token sequences of words that must not come. Tokenizes. Raises InvalidRequestError naming `param`."""
    found: set[tuple[int, ...]] = set()
    for at, word in enumerate(words):
        sequences = text.sequences_of(word)
        if not sequences or max(map(len, sequences)) > MAX_BAD_TOKENS:
            problem = f"must be 1 to {MAX_BAD_TOKENS} tokens of this model"
            raise InvalidRequestError(f"{param}[{at}]: {problem}", param=f"{param}[{at}]")
        found |= sequences
    return tuple(sorted(found))


def checked_prompt_ids(ids: list[int], model: ServedModel, param: str) -> list[int]:
    """A prompt given as token ids. Raises InvalidRequestError and ContextLengthError naming `param`."""
    check_ids(ids, model, param)
    if len(ids) >= model.max_context_tokens:
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens; the model's context holds {model.max_context_tokens} with the output",
            param=param,
        )
    return ids


def check_prompt_logprobs(num_prompt_tokens: int, num_top: int | None, *, param: str, num_shown: int = 1) -> None:
    """Raises InvalidRequestError for more log-probabilities of prompts than one answer may hold. `num_prompt_tokens`:
    of all prompts of the call; `num_shown`: how often the answer shows each prompt."""
    num_values = 0 if num_top is None else num_prompt_tokens * (num_top + 1) * num_shown
    if num_values > MAX_PROMPT_LOGPROBS:
        shown = f", shown {num_shown} times," if num_shown > 1 else ""
        raise InvalidRequestError(
            f"{param}: {num_prompt_tokens} prompt tokens with {num_top} alternatives each{shown} are more than "
            f"{MAX_PROMPT_LOGPROBS} values",
            param=param,
        )


def check_template_kwargs(kwargs: dict[str, Any], param: str) -> None:
    """Raises InvalidRequestError for template variables that the gateway sets itself."""
    reserved = _RESERVED & kwargs.keys()
    if reserved:
        name = min(reserved)
        raise InvalidRequestError(f"{param}.{name}: has a field of its own", param=f"{param}.{name}")
