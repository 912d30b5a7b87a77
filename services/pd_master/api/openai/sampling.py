"""OpenAI request fields become the engine's parameters."""

from services.common.errors import InvalidRequestError
from services.common.request import SamplingParams, StopParams, TextParams
from services.pd_master import checks
from services.pd_master.api.openai.fields import GenerationFields
from services.pd_master.backend import ServedModel
from services.pd_master.gateway import Gateway, Target

_LEAST_TOP_P = 1e-6
"""OpenAI's range begins at 0, which leaves the most likely token alone; a nucleus holds something."""


def check_fields(fields: GenerationFields) -> None:
    """What types alone do not say. Raises InvalidRequestError naming the field."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidRequestError("stream_options: only with stream", param="stream_options")
    options = fields.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        param = "stream_options.continuous_usage_stats"
        raise InvalidRequestError(f"{param}: needs stream_options.include_usage", param=param)
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequestError("prompt_logprobs: not in a stream", param="prompt_logprobs")


def sampling_params(fields: GenerationFields, target: Target, num_logprobs: int | None) -> SamplingParams:
    """What the client leaves open is the model's own recommendation. Raises InvalidRequestError for token ids outside
    the vocabulary."""
    checks.check_ids(fields.logit_bias or (), target.model, "logit_bias")
    checks.check_ids(fields.allowed_token_ids or (), target.model, "allowed_token_ids")
    defaults = target.text.sampling
    penalty = fields.repetition_penalty
    return SamplingParams(
        temperature=checks.temperature_of(defaults.temperature if fields.temperature is None else fields.temperature),
        top_k=max(defaults.top_k if fields.top_k is None else fields.top_k, 0),
        top_p=defaults.top_p if fields.top_p is None else max(fields.top_p, _LEAST_TOP_P),
        min_p=defaults.min_p if fields.min_p is None else fields.min_p,
        repetition_penalty=defaults.repetition_penalty if penalty is None else penalty,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        seed=checks.seed_of(fields.seed),
        logit_bias=fields.logit_bias or {},
        allowed_token_ids=tuple(fields.allowed_token_ids or ()),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=fields.prompt_logprobs,
    )


async def bad_sequences(gateway: Gateway, fields: GenerationFields, target: Target) -> tuple[tuple[int, ...], ...]:
    """What `bad_words` are as token ids. Raises InvalidRequestError for a word that the model has no tokens for."""
    if not fields.bad_words:
        return ()
    return await gateway.tokenizers.run(checks.bad_sequences, fields.bad_words, target.text, "bad_words")


def stop_params(fields: GenerationFields, model: ServedModel, max_new_tokens: int) -> StopParams:
    """Raises InvalidRequestError for stop ids outside the vocabulary and for min_tokens above the maximum."""
    checks.check_ids(fields.stop_token_ids or (), model, "stop_token_ids")
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
