"""The body of `POST /v1/responses`."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from services.pd_master.api.openai.chat_schema import FunctionName
from services.pd_master.api.openai.fields import Count, Fraction, StreamOptions, TopLogprobs


class ItemPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None
    logprobs: Any = None
    image_url: Any = None
    file_id: Any = None
    detail: Any = None


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input item: a message, a call, a call's output, or reasoning of an earlier answer."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    id: str | None = None
    status: str | None = None
    encrypted_content: str | None = None
    caller: Any = None
    phase: str | None = None


class FunctionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function the model may call."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:\-]{1,128}$")]
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None
    output_schema: Any = None
    defer_loading: bool | None = None
    """Accepted: every function is shown at once."""
    allowed_callers: list[str] | None = None


class FunctionTool(FunctionFields, frozen=True, tag_field="type", tag="function"):
    """A function by itself."""


class MemberFunction(FunctionFields, frozen=True, kw_only=True):
    """A function of a namespace, which has no other kinds of tools: its type is a field, since a tag with nothing to
    tell apart could be left out."""

    type: Literal["function"]


class NamespaceTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="namespace"):
    """Functions that belong together, such as those of one MCP server. Calls of them name it."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:\-]{1,64}$")]
    tools: Annotated[list[MemberFunction], Meta(min_length=1)]
    description: str | None = None


class HostedTool(msgspec.Struct, frozen=True, tag_field="type"):
    """A tool that the server would run. There are none here, and the model is not told of it: agents offer these
    whatever the server is."""


class WebSearchTool(HostedTool, frozen=True, tag="web_search"):
    """Looks things up."""


class WebSearchPreviewTool(HostedTool, frozen=True, tag="web_search_preview"):
    """Looks things up."""


class ImageGenerationTool(HostedTool, frozen=True, tag="image_generation"):
    """Draws."""


class ToolSearchTool(HostedTool, frozen=True, tag="tool_search"):
    """Finds tools that were not shown at once."""


AnyTool: TypeAlias = (
    FunctionTool | NamespaceTool | WebSearchTool | WebSearchPreviewTool | ImageGenerationTool | ToolSearchTool
)


class NamedFunction(FunctionName, frozen=True, forbid_unknown_fields=True):
    """`tool_choice` that forces one function."""

    type: Literal["function"] = "function"


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How hard to think; summaries are not made."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the text is to be."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedFunction


class ContextFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What makes the prompt, which is all that counts for its tokens."""

    model: str | None = None
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    tools: Annotated[list[AnyTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """Accepted: a prompt beyond the context is an error in either case."""

    # Known, and refused where they ask for what is not kept here.
    previous_response_id: str | None = None
    conversation: Any = None


class ResponsesBody(ContextFields, kw_only=True, forbid_unknown_fields=True):
    """All that a request may hold."""

    max_output_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Known, and refused where they ask for what is not done here.
    background: bool | None = None
    prompt: Any = None
    top_logprobs: TopLogprobs | None = None
    max_tool_calls: Count | None = None

    # Without effect on the output here.
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    include: list[str] | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Any = None
