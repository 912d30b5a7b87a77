"""Request fields that completions and chat share: OpenAI's and vLLM's common extras. Bounds stand in the types."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0)]
LogitBias: TypeAlias = Annotated[
    dict[TokenId, Bias], Meta(extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}})
]
"""JSON's keys are strings: these hold the ids' digits."""
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
BadWord: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
MAX_BAD_WORDS = 256

MAX_TOP_LOGPROBS = 20
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Accepted for clients that send it: padding against size analysis is not added."""
    continuous_usage_stats: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What form the output has, vLLM's way; one of them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None


class GenerationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What both OpenAI generation endpoints accept. `None` and absent mean the same everywhere."""

    model: str | None = None
    """Needed only where several are served."""
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: Int64 | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: list[TokenId] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None

    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None

    prompt_logprobs: TopLogprobs | None = None

    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None

    # Sent by clients of the field without effect on the output here.
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
