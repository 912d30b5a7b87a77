"""Response items as a chat."""

from collections.abc import Iterable, Sequence

from services.common.errors import InvalidRequestError
from services.pd_master.api.openai.chat_schema import (
    ChatBody,
    Function,
    FunctionCall,
    Message,
    NamedChoice,
    NamedSchema,
    ResponseFormat,
    Tool,
    ToolCall,
)
from services.pd_master.api.openai.chat_schema import ToolChoice as ChatToolChoice
from services.pd_master.api.responses.schema import (
    AnyTool,
    ContextFields,
    FunctionFields,
    FunctionTool,
    Item,
    ItemPart,
    NamedFunction,
    NamespaceTool,
    ResponsesBody,
)

_REFUSED = {
    "previous_response_id": "responses are not kept here; send the items of earlier turns in input",
    "conversation": "conversations are not kept here; send the items of earlier turns in input",
    "prompt": "prompt templates are not kept here; send what they make in instructions and input",
    "background": "a response is computed while its client waits for it",
    "top_logprobs": "log-probabilities are given by /v1/chat/completions",
}
_LOGPROBS = "message.output_text.logprobs"


def chat_body(body: ContextFields) -> ChatBody:
    """The same conversation, with limits and sampling where the body has them. Raises InvalidRequestError naming the
    field or item at fault."""
    for name, reason in _REFUSED.items():
        if getattr(body, name, None):
            raise InvalidRequestError(f"{name}: not supported: {reason}", param=name)
    form = body.text.format if body.text else None
    chat = ChatBody(
        model=body.model,
        messages=_messages(body),
        tools=_tools(body.tools or ()) or None,
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=ResponseFormat(form.type, NamedSchema(form.name, form.schema)) if form else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )
    if isinstance(body, ResponsesBody):
        if _LOGPROBS in (body.include or ()):
            problem = f"{_LOGPROBS} is not supported: {_REFUSED['top_logprobs']}"
            raise InvalidRequestError(f"include: {problem}", param="include")
        chat.max_completion_tokens, chat.temperature, chat.top_p = body.max_output_tokens, body.temperature, body.top_p
    return chat


def _messages(body: ContextFields) -> list[Message]:
    messages = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        if not body.input:
            raise InvalidRequestError("input: it is empty", param="input")
        return [*messages, Message("user", body.input)]
    for at, item in enumerate(body.input):
        _append(messages, item, f"input[{at}]")
    return messages


def _append(messages: list[Message], item: Item, where: str) -> None:
    """Calls and reasoning belong to the assistant's turn that they stand in; the chat has one message for all of it."""
    if item.type == "function_call":
        name = _full_name(item.namespace, _needed(item.name, f"{where}.name"))
        call = ToolCall(FunctionCall(name, item.arguments or "{}"), item.call_id or "")
        _to_assistant(messages, Message("assistant", tool_calls=[call]))
    elif item.type == "reasoning":
        thoughts = _text(item.content, f"{where}.content")
        if thoughts:
            _to_assistant(messages, Message("assistant", reasoning_content=thoughts))
    elif item.type == "function_call_output":
        output = _text(item.output, f"{where}.output")
        messages.append(Message("tool", output, tool_call_id=_needed(item.call_id, f"{where}.call_id")))
    else:
        if item.role is None or item.content is None:
            param = f"{where}.{'role' if item.role is None else 'content'}"
            raise InvalidRequestError(f"{param}: this field is required", param=param)
        message = Message(item.role, _text(item.content, f"{where}.content"))
        if item.role == "assistant":
            _to_assistant(messages, message)
        else:
            messages.append(message)


def _to_assistant(messages: list[Message], part: Message) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        messages.append(part)
        return
    messages[-1] = Message(
        "assistant",
        "".join(text for text in (last.content, part.content) if isinstance(text, str)) or None,
        tool_calls=[*(last.tool_calls or []), *(part.tool_calls or [])] or None,
        reasoning_content=(last.reasoning_content or "") + (part.reasoning_content or "") or None,
    )


def _text(content: str | list[ItemPart] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for at, part in enumerate(content):
        text = part.text if part.text is not None else part.refusal
        if text is None:
            problem = f"{part.type!r} parts are not supported, only text"
            raise InvalidRequestError(f"{where}[{at}]: {problem}", param=f"{where}[{at}]")
        texts.append(text)
    return "\n".join(texts)


def known_namespaces(tools: Sequence[AnyTool] | None) -> dict[str, tuple[str, str]]:
    """The name by which the model calls a namespace's function -> the namespace and the function's own name."""
    spaces = [tool for tool in tools or () if isinstance(tool, NamespaceTool)]
    return {_full_name(space.name, one.name): (space.name, one.name) for space in spaces for one in space.tools}


def _full_name(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _tools(tools: Iterable[AnyTool]) -> list[Tool]:
    found = []
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            found += [_tool(one, tool.name) for one in tool.tools]
        elif isinstance(tool, FunctionTool):
            found.append(_tool(tool, None))
    return found


def _tool(tool: FunctionFields, namespace: str | None) -> Tool:
    name = _full_name(namespace, tool.name)
    return Tool(Function(name, tool.description, tool.parameters, tool.strict))


def _tool_choice(body: ContextFields) -> ChatToolChoice | None:
    choice = body.tool_choice
    return NamedChoice(choice) if isinstance(choice, NamedFunction) else choice


def _needed(value: str | None, where: str) -> str:
    if value is None:
        raise InvalidRequestError(f"{where}: this field is required", param=where)
    return value
