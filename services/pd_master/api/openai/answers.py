"""What OpenAI's endpoints answer, as types: they hold the code that builds the answers, and the OpenAPI document shows
them."""

from typing import Literal, NotRequired, TypedDict

from services.pd_master.api.prompt_logprobs import ShownPrompt


class PromptDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int


class OutputDetails(TypedDict):
    """Of the output's tokens."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Tokens, never characters or chunks."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NotRequired[OutputDetails]


class ShownToken(TypedDict):
    """One token: its text (U+FFFD for bytes that are no whole characters), its bytes, its log-probability."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list["ShownToken"]]


class ChatLogprobs(TypedDict):
    """Of each token of a chat's output."""

    content: list[ShownToken]
    refusal: None


class CalledFunction(TypedDict):
    """A name and its arguments as JSON text; in a stream the text grows, and the name comes once."""

    name: NotRequired[str]
    arguments: str


class AnsweredCall(TypedDict):
    """A tool call. `index` tells calls apart in a stream, whose later chunks leave out `id` and `type`."""

    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    index: NotRequired[int]
    function: CalledFunction


class ChatMessage(TypedDict):
    """The answer of one choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall]]


class ChatChoice(TypedDict):
    """One of the `n` answers; `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class AnswerHead(TypedDict):
    """What tells where an answer comes from. `system_fingerprint` names the group of workers: with another one, the
    same seed may give another output."""

    created: int
    model: str
    system_fingerprint: str
    service_tier: NotRequired[Literal["default"]]


class ChatHead(AnswerHead):
    """What all chunks of an answer have in common."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk"]


class ChatCompletion(ChatHead):
    """The answer of `/v1/chat/completions`."""

    choices: list[ChatChoice]
    usage: Usage


class ScoredChatCompletion(ChatCompletion):
    """The same with what the request's `prompt_logprobs` adds."""

    prompt_logprobs: NotRequired[ShownPrompt]
    prompt_token_ids: NotRequired[list[int]]


class ChatDelta(TypedDict):
    """What a chunk adds."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[AnsweredCall]]


class ChatChunkChoice(TypedDict):
    """What a chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[str | int | None]


class ChatChunk(ChatHead):
    """One event of a chat stream. The last one before `[DONE]` has the usage and no choices, where it was asked for."""

    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class CompletionLogprobLists(TypedDict):
    """Parallel lists over the tokens of a completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One completion, or what an event adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobLists | None
    finish_reason: str | None
    stop_reason: NotRequired[str | int | None]
    prompt_logprobs: NotRequired[ShownPrompt]
    prompt_token_ids: NotRequired[list[int]]


class CompletionHead(AnswerHead):
    """What all events of an answer have in common."""

    id: str
    object: Literal["text_completion"]


class Completion(CompletionHead):
    """The answer of `/v1/completions`, and one event of its stream."""

    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class ModelCard(TypedDict):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["sluice"]
    max_model_len: int


class ModelList(TypedDict):
    """The answer of `/v1/models`."""

    object: Literal["list"]
    data: list[ModelCard]
