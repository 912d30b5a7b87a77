"""Chat messages become what chat templates read."""

from typing import Any

import msgspec

from services.common.errors import InvalidRequestError
from services.pd_master.api.openai.chat_schema import Message, Part, Tool, ToolCall
from services.pd_master.chat_template import ChatTemplate


def template_messages(messages: list[Message], template: ChatTemplate) -> list[dict[str, Any]]:
    """Messages as dictionaries without empty fields, content as one string.

    `developer` becomes `system` for templates that do not know it. System messages stay where they are, which keeps
    what was cached before them, or are gathered at the front for templates that know them nowhere else. Raises
    InvalidRequestError naming the field.
    """
    knows_developer = "developer" in template.source
    shown = [_message(message, f"messages[{at}]", knows_developer) for at, message in enumerate(messages)]
    is_late = any(one["role"] == "system" for one in shown[1:])
    return _system_first(shown) if is_late and not template.takes_late_system else shown


def _system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = [one.get("content", "") for one in messages if one["role"] == "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *(one for one in messages if one["role"] != "system")]


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as dictionaries; None when there are none, which is how templates tell."""
    if not tools:
        return None
    return [{"type": "function", "function": _present(msgspec.to_builtins(tool.function))} for tool in tools]


def _message(message: Message, where: str, knows_developer: bool) -> dict[str, Any]:
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise InvalidRequestError(f"{where}.{name}: not supported", param=f"{where}.{name}")
    role = message.role if message.role != "developer" or knows_developer else "system"
    shown: dict[str, Any] = {"role": role}
    content = _content(message, where)
    if content is not None:
        shown["content"] = content
    shown.update(_present({"name": message.name, "tool_call_id": message.tool_call_id}))
    if message.tool_calls:
        shown["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(message.tool_calls)
        ]
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:  # gpt-oss templates read `thinking`
        shown["reasoning_content"] = shown["thinking"] = reasoning
    return shown


def _content(message: Message, where: str) -> str | None:
    if isinstance(message.content, list):
        return "\n".join([_part_text(part, f"{where}.content[{at}]") for at, part in enumerate(message.content)])
    content = message.content if message.content is not None else message.refusal
    says_else = message.role == "assistant" and (message.tool_calls or message.reasoning_content or message.reasoning)
    if content is None and not says_else:
        raise InvalidRequestError(f"{where}.content: this field is required", param=f"{where}.content")
    return content


def _part_text(part: Part, where: str) -> str:
    if part.type == "text" and part.text is not None:
        return part.text
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type in ("text", "refusal"):
        raise InvalidRequestError(f"{where}.{part.type}: this field is required", param=f"{where}.{part.type}")
    raise InvalidRequestError(f"{where}.type: {part.type!r} parts are not supported, only text", param=f"{where}.type")


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    """Templates print arguments themselves, so they get the object, not its JSON text."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        param = f"{where}.function.arguments"
        raise InvalidRequestError(f"{param}: not valid JSON: {error}", param=param) from error
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
