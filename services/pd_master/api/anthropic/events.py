"""A message as Anthropic's server-sent events: one content block after the other, each opened, filled and closed."""

from typing import Any

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta, Finish
from services.pd_master.api.anthropic.answers import AnswerMessage, MessageUsage, Stop
from services.pd_master.api.anthropic.wire import anthropic_error, message_head, stop_of, usage_of
from services.pd_master.api.choices import parts_of
from services.pd_master.api.openai.answer_plan import ChoiceReader
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart

encode = msgspec.json.encode

_EMPTY_BLOCKS = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


def event(name: str, **fields: Any) -> bytes:
    """One event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode({"type": name, **fields}))


class MessageEvents:
    """Encodes one message stream."""

    def __init__(self, live: LiveRequest, reader: ChoiceReader | None, *, fills_context: bool) -> None:
        self._live = live
        self._reader = reader
        self._fills_context = fills_context
        self._number = -1
        """Of the content block that is open, or was last."""
        self._kind: str | None = None
        """Kind of the open block."""
        self._finish: Finish | None = None

    def start(self) -> bytes:
        """The message without content, and a ping as Anthropic sends it."""
        usage: MessageUsage = {**usage_of(self._live), "output_tokens": 0}
        stop: Stop = {"stop_reason": None, "stop_sequence": None}
        message: AnswerMessage = {**message_head(self._live), "content": [], **stop, "usage": usage}
        return event("message_start", message=message) + event("ping")

    def delta(self, delta: Delta) -> bytes:
        """Events of the pieces that it completes."""
        self._finish = delta.finish or self._finish
        if self._reader is not None:
            pieces = self._reader.read(parts_of(delta), len(delta.token_ids), is_last=delta.finish is not None)
            return b"".join([self._piece(piece) for piece in pieces])
        return self._fill("text", "text_delta", "text", delta.text) if delta.text else b""

    def end(self) -> bytes:
        """Why it ended, what it took, and the end."""
        assert self._finish is not None, "the stream has ended"
        has_calls = self._reader is not None and self._reader.has_calls(self._finish)
        stop = stop_of(self._finish, has_calls=has_calls, fills_context=self._fills_context)
        tail = event("message_delta", delta=stop, usage=usage_of(self._live)) + event("message_stop")
        return self._close() + tail

    def error(self, error: SluiceError) -> bytes:
        """The error as the stream's last event."""
        return b"event: error\ndata: " + anthropic_error(error) + b"\n\n"

    def _piece(self, piece: Piece) -> bytes:
        match piece:
            case Content(text):
                return self._fill("text", "text_delta", "text", text)
            case Reasoning(text):
                return self._fill("thinking", "thinking_delta", "thinking", text)
            case ToolStart(_, call_id, name):
                return self._open("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case ToolArguments(_, text):
                return self._fill("tool_use", "input_json_delta", "partial_json", text)

    def _fill(self, kind: str, delta_type: str, field: str, text: str) -> bytes:
        opened = b"" if self._kind == kind else self._open(kind, _EMPTY_BLOCKS[kind])
        return opened + event("content_block_delta", index=self._number, delta={"type": delta_type, field: text})

    def _open(self, kind: str, block: dict[str, Any]) -> bytes:
        closed = self._close()
        self._number += 1
        self._kind = kind
        return closed + event("content_block_start", index=self._number, content_block=block)

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        self._kind = None
        return event("content_block_stop", index=self._number)
