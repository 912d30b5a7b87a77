"""What the native endpoints answer, as types: they hold the code that builds the answers, and the OpenAPI document
shows them. With several choices, a single value becomes a list of one for each."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from services.common.gateway_messages import WorkerCard
from services.pd_master.api.prompt_logprobs import ShownPrompt


class InputUsage(TypedDict):
    """What the prompt took."""

    input_text_tokens: int
    input_cached_tokens: int


class NativeToken(TypedDict):
    """One token of the output, or the end alone, which has no id."""

    id: int | None
    text: str
    logprob: float | None
    special: bool
    count_output_tokens: int
    prompt_tokens: int
    logprobs: NotRequired[None]


class Generated(TypedDict):
    """The answer of `/generate`. What follows `prompt_tokens` is there with `return_details`,
    `prompt_logprobs` where it was asked for."""

    generated_text: list[str]
    count_output_tokens: int | list[int]
    finish_reason: str | list[str]
    prompt_tokens: int
    tokens: NotRequired[list[Any]]
    logprobs: NotRequired[list[Any]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[ShownPrompt]
    input_usage: NotRequired[InputUsage]


class NativeEvent(TypedDict):
    """One event of `/generate_stream`; the last is `finished` and, where something broke, has an `error`."""

    token: NativeToken
    generated_text: None
    finished: bool
    finish_reason: str | None
    details: None
    input_usage: InputUsage
    error: NotRequired[Any]


class NumTokens(TypedDict):
    """The answer of `/tokens`."""

    ntokens: int


class Load(TypedDict):
    """The answer of `/token_load`: shares of the fullest stage's KV slots."""

    current_load: float
    logical_max_load: float
    dynamic_max_load: float


class ModelName(TypedDict):
    """The answer of `/get_model_name`."""

    model_name: str


class ServerInfo(TypedDict):
    """The answer of `/get_server_info`; beside these it holds every option in force."""

    name: str
    version: str
    models: list[str]
    num_pairs: int


class Version(TypedDict):
    """The answer of `/version`."""

    version: str


class Health(TypedDict):
    """The answer of probes."""

    message: str


class ConsoleView(TypedDict):
    """What the console shows: `stages` counts requests by stage, `output_tokens` all that this master has delivered."""

    version: str
    models: list[str]
    num_pairs: int
    stages: dict[str, int]
    output_tokens: int
    workers: Sequence[WorkerCard]
