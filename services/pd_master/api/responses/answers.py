"""What `/v1/responses` answers, as types: they hold the code that builds the answers, and the OpenAPI document shows
them."""

from typing import Any, Literal, NotRequired, TypedDict

ItemType = Literal["message", "reasoning", "function_call"]
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputItem(TypedDict):
    """A message or reasoning with its content, or a call with its name and arguments."""

    id: str
    type: ItemType
    status: str
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[list[dict[str, Any]]]
    summary: NotRequired[list[dict[str, Any]]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    namespace: NotRequired[str]
    arguments: NotRequired[str]


class ResponseInputDetails(TypedDict):
    """Of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputDetails(TypedDict):
    """Of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens."""

    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class Incomplete(TypedDict):
    """Why the output was cut off."""

    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class Response(TypedDict):
    """The answer of `/v1/responses`; what the request set is said again."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: ResponseError | None
    incomplete_details: Incomplete | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: Any
    store: bool
    temperature: float
    text: Any
    tool_choice: Any
    tools: list[Any]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class InputTokens(TypedDict):
    """The answer of `/v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ResponseEvent(TypedDict):
    """One event of a response stream; which fields it has follows from its type."""

    type: str
    sequence_number: int
    response: NotRequired[Response]
    item: NotRequired[OutputItem]
    item_id: NotRequired[str]
    output_index: NotRequired[int]
    content_index: NotRequired[int]
    part: NotRequired[dict[str, Any]]
    delta: NotRequired[str]
    text: NotRequired[str]
    arguments: NotRequired[str]
    name: NotRequired[str]
    logprobs: NotRequired[list[Any]]
