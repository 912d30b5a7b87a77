"""Chat chunks as server-sent events.

What is equal in all of a choice's chunks is encoded once; a delta costs one JSON encode of its text and one join.
"""

import msgspec

from services.common.errors import SluiceError
from services.common.request import Delta, Finish, FinishReason
from services.common.text import Vocabulary
from services.pd_master.api.choices import parts_of
from services.pd_master.api.errors import openai_error
from services.pd_master.api.openai.answer_plan import ChoiceReader, num_reasoning_tokens
from services.pd_master.api.openai.answers import CalledFunction, ChatDelta, ChatHead, Usage
from services.pd_master.api.openai.logprobs import chat_logprobs
from services.pd_master.api.openai.usage import usage_of
from services.pd_master.live_request import LiveRequest
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
_CLOSE, _CLOSE_WITH_USAGE = b"}]}\n\n", b'}],"usage":null}\n\n'
_TEXT_CLOSE, _TEXT_CLOSE_WITH_USAGE = (
    b'},"logprobs":null,"finish_reason":null' + close for close in (_CLOSE, _CLOSE_WITH_USAGE)
)


class ChatEvents:
    """Encodes one chat stream."""

    def __init__(
        self,
        live: LiveRequest,
        head: ChatHead,
        *,
        include_usage: bool,
        vocabulary: Vocabulary,
        num_top_logprobs: int,
        readers: list[ChoiceReader] | None = None,
    ) -> None:
        """`readers`: one per choice, unless the output is plain text."""
        self._live = live
        self._include_usage = include_usage
        self._vocabulary = vocabulary
        self._num_top = num_top_logprobs
        self._readers = readers
        self._head = b"data: " + encode(head)[:-1]
        self._open = [self._head + b',"choices":[{"index":%d,"delta":' % at for at in range(live.request.num_choices)]
        self._close = _CLOSE_WITH_USAGE if include_usage else _CLOSE
        self._text_open = [opened + b'{"content":' for opened in self._open]
        self._text_close = _TEXT_CLOSE_WITH_USAGE if include_usage else _TEXT_CLOSE

    def start(self) -> bytes:
        """The chunk that names the role, for each choice."""
        delta = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return b"".join([opened + delta + self._close for opened in self._open])

    def delta(self, delta: Delta) -> bytes:
        """A chunk, if it shows something."""
        if self._readers is not None:
            events = self._pieces(delta, self._readers[delta.choice])
        elif delta.logprobs:
            events = self._with_logprobs(delta, delta.text)
        elif delta.text:
            events = self._text_open[delta.choice] + encode(delta.text) + self._text_close
        else:
            events = b""
        return events if delta.finish is None else events + self._finish(delta.choice, delta.finish)

    def end(self) -> bytes:
        """The usage chunk, when asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return self._head + b',"choices":[],"usage":' + encode(self._usage()) + b"}\n\n" + DONE

    def _usage(self) -> Usage:
        return usage_of([self._live], num_reasoning_tokens(self._readers))

    def error(self, error: SluiceError) -> bytes:
        """The error as the stream's last event; `[DONE]` does not follow, since it is not done."""
        return b"data: " + openai_error(error) + b"\n\n"

    def _pieces(self, delta: Delta, reader: ChoiceReader) -> bytes:
        """A chunk for each piece; log-probabilities come in one of their own before them."""
        opened = self._open[delta.choice]
        pieces = reader.read(parts_of(delta), len(delta.token_ids), is_last=delta.finish is not None)
        events = [opened + encode(_piece(piece)) + self._text_close[1:] for piece in pieces]
        if delta.logprobs:
            events.insert(0, self._with_logprobs(delta, ""))
        return b"".join(events)

    def _with_logprobs(self, delta: Delta, shown: str) -> bytes:
        logprobs = encode(chat_logprobs(delta.logprobs or [], self._vocabulary, self._num_top))
        opened, text = self._text_open[delta.choice], encode(shown)
        return b"".join((opened, text, b'},"logprobs":', logprobs, b',"finish_reason":null', self._close))

    def _finish(self, choice: int, finish: Finish) -> bytes:
        has_calls = self._readers is not None and self._readers[choice].has_calls(finish)
        reason = encode(finish_reason(finish, has_calls=has_calls))
        stop = encode(finish.stop_reason)
        parts = (self._open[choice], b'{},"logprobs":null,"finish_reason":', reason, b',"stop_reason":', stop)
        return b"".join((*parts, self._close))


def finish_reason(finish: Finish, *, has_calls: bool) -> str:
    """A call that ended by itself is `tool_calls`; one that was cut off stays `length`."""
    return "tool_calls" if has_calls and finish.reason is FinishReason.STOP else finish.reason.value


def _piece(piece: Piece) -> ChatDelta:
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolStart(number, call_id, name):
            function: CalledFunction = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": function}]}
        case ToolArguments(number, text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}
