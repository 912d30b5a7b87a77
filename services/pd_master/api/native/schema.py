"""Bodies of the native API."""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from services.pd_master.api.openai.fields import LogitBias

Count: TypeAlias = Annotated[int, Meta(ge=1)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0)]
StopSequence: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
LengthPenalty: TypeAlias = tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], Annotated[float, Meta(ge=1, le=100)]]
StopIds: TypeAlias = Annotated[list[TokenId], Meta(min_length=1, max_length=64)]


class Parameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`parameters` of a generation; the defaults are the wire's."""

    n: Count | None = None
    best_of: Count | None = None
    max_new_tokens: Count | None = None
    min_new_tokens: Annotated[int, Meta(ge=0)] | None = None

    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=0, le=100)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=0, le=100)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    exponential_decay_length_penalty: LengthPenalty | None = None
    input_penalty: bool | None = None
    seed: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    ignore_eos: bool | None = None

    stop_sequences: StopSequence | Annotated[list[StopSequence | StopIds], Meta(max_length=10)] | None = None
    regular_constraint: str | None = None
    guided_grammar: str | None = None
    guided_json: dict[str, Any] | str | None = None
    allowed_token_ids: list[TokenId] | None = None
    logit_bias: LogitBias | None = None

    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    add_spaces_between_special_tokens: bool | None = None
    print_eos_token: bool | None = None

    prompt_logprobs: Annotated[int, Meta(ge=-1, le=20)] | None = None
    return_details: bool | None = None
    group_request_id: int | str | None = None


class GenerateBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/generate` and `/generate_stream`. `model` is needed only where several are served."""

    inputs: str | list[int]
    parameters: Parameters = msgspec.field(default_factory=Parameters)
    multimodal_params: dict[str, Any] | None = None
    model: str | None = None


class RootBody(GenerateBody, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /`."""

    stream: bool = False


class TokensBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `/tokens`."""

    text: str
    parameters: Parameters = msgspec.field(default_factory=Parameters)
    multimodal_params: dict[str, Any] | None = None
    model: str | None = None
