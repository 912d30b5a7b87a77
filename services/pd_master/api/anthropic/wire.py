"""Answers and errors of the Anthropic API."""

import msgspec

from services.common.errors import SluiceError
from services.common.request import Finish, FinishReason
from services.pd_master.api.anthropic.answers import AnswerBlock, MessageError, MessageHead, MessageUsage, Stop
from services.pd_master.api.http import HttpCall
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(error: SluiceError) -> bytes:
    """`{"type": "error", "error": {"type", "message"}}`."""
    default = "invalid_request_error" if error.http_status < 500 else "api_error"
    kind = _ERROR_TYPES.get(error.http_status, default)
    body: MessageError = {"type": "error", "error": {"type": kind, "message": error.message}}
    return msgspec.json.encode(body)


def is_anthropic(call: HttpCall) -> bool:
    """Whether a client of this API asks, on a path that is not this API's alone."""
    return bool(call.header(b"anthropic-version"))


def message_head(live: LiveRequest) -> MessageHead:
    """What a message says before its content."""
    return {"id": f"msg_{live.request.request_id}", "type": "message", "role": "assistant", "model": live.request.model}


def usage_of(live: LiveRequest) -> MessageUsage:
    """Cached prompt tokens are not counted as input, as this API does."""
    return {
        "input_tokens": live.num_prompt_tokens - live.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": live.cached_tokens,
        "output_tokens": live.num_output_tokens,
    }


def stop_of(finish: Finish, *, has_calls: bool, fills_context: bool) -> Stop:
    """`stop_reason` and `stop_sequence`. `fills_context`: the limit was the model's and not the client's."""
    reason, sequence = "end_turn", None
    if finish.reason is FinishReason.LENGTH:
        reason = "model_context_window_exceeded" if fills_context else "max_tokens"
    elif has_calls:
        reason = "tool_use"
    elif isinstance(finish.stop_reason, str):
        reason, sequence = "stop_sequence", finish.stop_reason
    return {"stop_reason": reason, "stop_sequence": sequence}


def content_of(pieces: list[Piece]) -> list[AnswerBlock]:
    """Blocks in the order the model wrote them."""
    blocks: list[AnswerBlock] = []
    for piece in pieces:
        last: AnswerBlock = blocks[-1] if blocks else {"type": "text"}
        match piece:
            case Content(text) if "text" in last:
                last["text"] += text
            case Content(text):
                blocks.append({"type": "text", "text": text})
            case Reasoning(text) if "thinking" in last:
                last["thinking"] += text
            case Reasoning(text):
                blocks.append({"type": "thinking", "thinking": text, "signature": ""})
            case ToolStart(_, call_id, name):
                blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": ""})
            case ToolArguments(_, text):
                last["input"] += text
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = _input(block["input"])
    return blocks


def _input(arguments: str) -> object:
    """An object; of a call that was cut off there is none, which its stop reason says."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}
