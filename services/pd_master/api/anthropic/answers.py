"""What Anthropic's endpoints answer, as types: they hold the code that builds the answers, and the OpenAPI document
shows them."""

from typing import Any, Literal, NotRequired, TypedDict


class MessageUsage(TypedDict):
    """Tokens; cached ones of the prompt are not counted as input."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class AnswerBlock(TypedDict):
    """A part of the answer: `text`, `thinking` with its signature, or `tool_use` with id, name and input."""

    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[Any]


class MessageHead(TypedDict):
    """What a message says before its content."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str


class Stop(TypedDict):
    """Why a message ended, and with which stop sequence."""

    stop_reason: str | None
    stop_sequence: str | None


class AnswerMessage(MessageHead, Stop):
    """The answer of `/v1/messages`."""

    content: list[AnswerBlock]
    usage: MessageUsage


class MessageEvent(TypedDict):
    """One event of a message stream; which fields it has follows from its type."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "error",
    ]
    message: NotRequired[AnswerMessage]
    index: NotRequired[int]
    content_block: NotRequired[AnswerBlock]
    delta: NotRequired[dict[str, Any]]
    usage: NotRequired[MessageUsage]
    error: NotRequired["MessageErrorBody"]


class TokenCount(TypedDict):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class ModelInfo(TypedDict):
    """A model that is served; its limits are those of its context, prompt and output together."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int


class ModelPage(TypedDict):
    """The answer of `/v1/models` to Anthropic's clients; all models stand on one page."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageErrorBody(TypedDict):
    """What went wrong."""

    type: str
    message: str


class MessageError(TypedDict):
    """Any answer of these paths with a status from 400 on."""

    type: Literal["error"]
    error: MessageErrorBody
