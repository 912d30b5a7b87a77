"""The body of `POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from services.pd_master.api.openai.fields import Count, GenerationFields, TopLogprobs


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a message's content; the served models read text only."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    cache_control: Any = None


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the assistant called; `arguments` is JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in an assistant message, as an earlier answer gave it."""

    function: FunctionCall
    id: str = ""
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the conversation. SDKs send earlier answers back whole, so their null fields are known too."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    function: Function
    type: Literal["function"] = "function"


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names a function."""

    name: str


class NamedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tool_choice` that forces one function."""

    function: FunctionName
    type: Literal["function"] = "function"


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema; `strict` or not, the answer is held to it."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedChoice


class ChatBody(GenerationFields, kw_only=True, forbid_unknown_fields=True):
    """All that a chat request may hold."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None

    # Without effect on text models here.
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
