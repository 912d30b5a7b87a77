"""Anthropic messages as a chat: blocks become content, calls and results, thoughts become reasoning."""

from collections.abc import Sequence

import msgspec

from services.common.errors import InvalidRequestError
from services.pd_master.api.anthropic.schema import (
    AnyBlock,
    CountBody,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    InputTool,
    MessagesBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from services.pd_master.api.openai.chat_schema import (
    ChatBody,
    Function,
    FunctionCall,
    FunctionName,
    Message,
    NamedChoice,
    NamedSchema,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
)


def chat_body(body: CountBody) -> ChatBody:
    """The same conversation for the chat template, with sampling where the body has it. `max_tokens` is left open.

    Raises InvalidRequestError naming the block at fault.
    """
    messages = [Message("system", _joined(body.system, "system"))] if body.system else []
    for at, message in enumerate(body.messages):
        messages += _turn(message, f"messages[{at}]")
    chat = ChatBody(
        model=body.model,
        messages=messages,
        continue_final_message=_is_begun(messages[-1]),
        tools=[_tool(tool) for tool in body.tools] if body.tools else None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        chat_template_kwargs=_template_kwargs(body),
        reasoning_effort=body.output_config.effort if body.output_config else None,
        response_format=_response_format(body),
    )
    if isinstance(body, MessagesBody):
        chat.temperature, chat.top_p, chat.top_k = body.temperature, body.top_p, body.top_k
        chat.stop = body.stop_sequences
    return chat


def _is_begun(last: Message) -> bool:
    """Whether the client has put words in the answer's mouth."""
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def _turn(message: InputMessage, where: str) -> list[Message]:
    if isinstance(message.content, str):
        return [Message(message.role, message.content)]
    for at, block in enumerate(message.content):
        if isinstance(block, ImageBlock | DocumentBlock):
            raise _text_only(f"{where}.content[{at}]")
    if message.role == "system":
        return [Message("system", _joined(message.content, f"{where}.content"))]
    if message.role == "assistant":
        return [_assistant(message)]
    results = [
        _result(block, f"{where}.content[{at}]")
        for at, block in enumerate(message.content)
        if isinstance(block, ToolResultBlock)
    ]
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    return [*results, Message("user", "\n".join(texts))] if texts or not results else results


def _assistant(message: InputMessage) -> Message:
    content, calls, thoughts = "", [], ""
    for block in message.content:
        if isinstance(block, TextBlock):
            content += block.text
        elif isinstance(block, ThinkingBlock):
            thoughts += block.thinking
        elif isinstance(block, ToolUseBlock):
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(ToolCall(FunctionCall(block.name, arguments), block.id))
    return Message("assistant", content, tool_calls=calls or None, reasoning_content=thoughts or None)


def _result(block: ToolResultBlock, where: str) -> Message:
    content = _joined(block.content, f"{where}.content")
    return Message("tool", f"Error: {content}" if block.is_error else content, tool_call_id=block.tool_use_id)


def _tool(tool: InputTool) -> Tool:
    return Tool(Function(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(body: CountBody) -> ToolChoice | None:
    choice = body.tool_choice
    if choice is None:
        return None
    match choice.type:
        case "auto" | "none":
            return choice.type
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise InvalidRequestError("tool_choice.name: this field is required", param="tool_choice.name")
            return NamedChoice(FunctionName(choice.name))


def _response_format(body: CountBody) -> ResponseFormat | None:
    form = body.output_config.format if body.output_config else None
    return None if form is None else ResponseFormat(form.type, NamedSchema(schema=form.schema))


def _template_kwargs(body: CountBody) -> dict[str, object] | None:
    """Templates that can switch thinking name the switch in one of two ways; others ignore both."""
    if body.thinking is None:
        return None
    thinks = body.thinking.type != "disabled"
    return {"enable_thinking": thinks, "thinking": thinks}


def _joined(content: str | Sequence[AnyBlock] | None, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    if len(texts) < len(content):
        raise _text_only(where)
    return "\n".join(texts)


def _text_only(where: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: the served models read text only", param=where)
