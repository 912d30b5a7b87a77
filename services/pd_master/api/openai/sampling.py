"""OpenAI request fields become the engine's parameters."""

import secrets
from collections.abc import Iterable

from services.common.config import GatewayConfig
from services.common.errors import ContextLengthError, InvalidRequestError
from services.common.request import SamplingParams, StopParams, TextParams
from services.pd_master.api.openai.fields import GenerationFields
from services.pd_master.backend import ServedModel

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as everywhere in the field."""

_UNSUPPORTED = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "prompt_logprobs",
    "bad_words",
)


def refuse_unsupported(fields: GenerationFields) -> None:
    """Raises InvalidRequestError for a field that is known to the API and not to any engine here."""
    for name in _UNSUPPORTED:
        if getattr(fields, name) is not None:
            raise InvalidRequestError(f"{name}: not supported by this server", param=name)


def choice_count(wanted: int | None, config: GatewayConfig, *, param: str) -> int:
    """How many sequences to generate. Raises InvalidRequestError beyond the gateway's limit."""
    count = wanted or 1
    if count > config.max_choices:
        raise InvalidRequestError(f"{param}: {count} is more than the limit of {config.max_choices}", param=param)
    return count


def sampling_params(fields: GenerationFields, model: ServedModel, num_logprobs: int | None) -> SamplingParams:
    """Raises InvalidRequestError for token ids outside the vocabulary."""
    check_ids(fields.logit_bias or (), model, "logit_bias")
    check_ids(fields.allowed_token_ids or (), model, "allowed_token_ids")
    return SamplingParams(
        temperature=temperature_of(fields.temperature),
        top_k=max(fields.top_k or 0, 0),
        top_p=fields.top_p if fields.top_p is not None else 1.0,
        min_p=fields.min_p or 0.0,
        repetition_penalty=fields.repetition_penalty if fields.repetition_penalty is not None else 1.0,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        seed=seed_of(fields.seed),
        logit_bias=fields.logit_bias or {},
        allowed_token_ids=tuple(fields.allowed_token_ids or ()),
        num_logprobs=num_logprobs,
    )


def stop_params(fields: GenerationFields, model: ServedModel, max_new_tokens: int) -> StopParams:
    """Raises InvalidRequestError for stop ids outside the vocabulary and for min_tokens above the maximum."""
    check_ids(fields.stop_token_ids or (), model, "stop_token_ids")
    if (fields.min_tokens or 0) > max_new_tokens:
        raise InvalidRequestError(
            f"min_tokens: {fields.min_tokens} is more than the {max_new_tokens} tokens that may be generated",
            param="min_tokens",
        )
    return StopParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=fields.min_tokens or 0,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        stop_strings=(fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ()),
        include_stop_string=fields.include_stop_str_in_output or False,
        ignore_eos=fields.ignore_eos or False,
    )


def text_params(fields: GenerationFields) -> TextParams:
    """How output ids become text."""
    return TextParams(
        skip_special_tokens=fields.skip_special_tokens is not False,
        spaces_between_special_tokens=fields.spaces_between_special_tokens is not False,
    )


def fit_output(num_prompt_tokens: int, wanted: int | None, model: ServedModel, *, param: str) -> int:
    """Tokens to generate at most: what was asked for, or all that fits. Raises ContextLengthError (`param`)."""
    room = model.max_context_tokens - num_prompt_tokens
    if wanted is None:
        return room
    if wanted > room:
        raise ContextLengthError(
            f"{param}: {num_prompt_tokens} prompt tokens and {wanted} new ones do not fit the model's context "
            f"of {model.max_context_tokens} tokens",
            param=param,
        )
    return wanted


def temperature_of(value: float | None) -> float:
    """0 for greedy; the API's default is 1."""
    if value is None:
        return 1.0
    return 0.0 if value < GREEDY_BELOW else value


def seed_of(value: int | None) -> int:
    """64 bits: the client's, or drawn, so that every attempt of this request repeats the same noise (DESIGN R9)."""
    return secrets.randbits(64) if value is None else value & (2**64 - 1)


def check_ids(ids: Iterable[int], model: ServedModel, param: str) -> None:
    """Raises InvalidRequestError naming `param` for an id that the model does not have."""
    worst = max(ids, default=0)
    if worst >= model.vocab_size:
        raise InvalidRequestError(
            f"{param}: token id {worst} is outside the model's vocabulary of {model.vocab_size}", param=param
        )


def checked_prompt_ids(ids: list[int], model: ServedModel, param: str) -> list[int]:
    """A prompt given as token ids. Raises InvalidRequestError and ContextLengthError naming `param`."""
    if min(ids) < 0:
        raise InvalidRequestError(f"{param}: token id {min(ids)} is negative", param=param)
    check_ids(ids, model, param)
    if len(ids) >= model.max_context_tokens:
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens; the model's context holds {model.max_context_tokens} with the output",
            param=param,
        )
    return ids
