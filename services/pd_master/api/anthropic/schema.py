"""Bodies of `POST /v1/messages` and `/v1/messages/count_tokens`."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from services.pd_master.api.openai.fields import Count, Fraction, StopString


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    """A part of a message's content."""

    cache_control: Any = None
    """Accepted: prefixes are cached without being asked."""


class TextBlock(Block, frozen=True, forbid_unknown_fields=True, tag="text", kw_only=True):
    """Text."""

    text: str
    citations: Any = None


class ToolUseBlock(Block, frozen=True, forbid_unknown_fields=True, tag="tool_use", kw_only=True):
    """A call that the assistant made."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None
    toolset_name: str | None = None


class ThinkingBlock(Block, frozen=True, forbid_unknown_fields=True, tag="thinking", kw_only=True):
    """What the assistant thought; the signature is of no use here."""

    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, frozen=True, forbid_unknown_fields=True, tag="redacted_thinking", kw_only=True):
    """Thoughts that only their own server can read."""

    data: str


class ImageBlock(Block, frozen=True, forbid_unknown_fields=True, tag="image", kw_only=True):
    """Known to the API, not to the served models."""

    source: Any = None


class DocumentBlock(Block, frozen=True, forbid_unknown_fields=True, tag="document", kw_only=True):
    """Known to the API, not to the served models."""

    source: Any = None
    title: str | None = None
    context: str | None = None
    citations: Any = None


class ToolResultBlock(Block, frozen=True, forbid_unknown_fields=True, tag="tool_result", kw_only=True):
    """What a call gave."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None


AnyBlock: TypeAlias = (
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | ImageBlock | DocumentBlock
)


class InputMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock]


class InputTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function the model may call."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:\-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    """Accepted: every tool is shown at once."""
    input_examples: Any = None
    """Accepted: chat templates have no place for them."""


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and what to call."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to think first; how much is up to the model."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much effort, and which form."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None
    """Accepted: how many tokens a task may take over its requests is the agent's to keep."""


class CountBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What counts: everything that makes the prompt."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[TextBlock | ImageBlock] | None = None
    """Blocks of text; two kinds are declared so that each has to say its type."""
    tools: Annotated[list[InputTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    context_management: Any = None
    """Accepted, as agents send it: nothing of a conversation is cleared here."""


class MessagesBody(CountBody, kw_only=True, forbid_unknown_fields=True):
    """A request for the next message."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None

    # Without effect on the output here.
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    diagnostics: Any = None
