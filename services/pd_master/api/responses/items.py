"""Pieces of an answer become output items, and the events that tell of their growth.

One item is open at a time: it is added, grows by deltas and is done when a piece of another kind comes or the output
ends.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from services.pd_master.api.responses.answers import OutputItem
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart

Event: TypeAlias = dict[str, Any]

_TEXT_EVENTS = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


class OutputItems:
    """The items of one response so far."""

    def __init__(self, request_id: str, namespaces: Mapping[str, tuple[str, str]]) -> None:
        """`namespaces`: of those functions that have one, by the name that the model calls."""
        self._namespaces = namespaces
        self.items: list[OutputItem] = []
        self._request_id = request_id
        self._is_open = False

    def add(self, piece: Piece) -> list[Event]:
        """Take a piece; the events it causes, without their sequence numbers."""
        match piece:
            case Content(text):
                return [*self._need("message"), self._grow(text)]
            case Reasoning(text):
                return [*self._need("reasoning"), self._grow(text)]
            case ToolStart(_, call_id, name):
                namespace, own_name = self._namespaces.get(name, (None, name))
                call = {"type": "function_call", "call_id": call_id, "name": own_name, "arguments": ""}
                if namespace is not None:
                    call["namespace"] = namespace
                return [*self.close(), *self._open("fc", call)]
            case ToolArguments(_, text):
                self.items[-1]["arguments"] += text
                return [self._event("response.function_call_arguments.delta", delta=text)]

    def close(self, status: str = "completed") -> list[Event]:
        """End the open item. `status`: incomplete when the output was cut off in it."""
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        done = self._event("response.output_item.done", item=item)
        del done["item_id"]
        if item["type"] == "function_call":
            arguments = item["arguments"]
            return [self._event("response.function_call_arguments.done", arguments=arguments, name=item["name"]), done]
        part = item["content"][0]
        text = self._event(f"{_TEXT_EVENTS[item['type']]}.done", content_index=0, text=part["text"])
        if item["type"] == "message":
            text["logprobs"] = []
        return [text, self._event("response.content_part.done", content_index=0, part=part), done]

    def _need(self, kind: str) -> list[Event]:
        """Open an item of text, unless that is the one that is open."""
        if self._is_open and self.items[-1]["type"] == kind:
            return []
        if kind == "message":
            item = {"type": kind, "role": "assistant", "content": []}
            part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        else:
            item = {"type": kind, "summary": [], "content": []}
            part = {"type": "reasoning_text", "text": ""}
        events = [*self.close(), *self._open("msg" if kind == "message" else "rs", item)]
        self.items[-1]["content"] = [part]
        return [*events, self._event("response.content_part.added", content_index=0, part=dict(part))]

    def _open(self, prefix: str, item: dict[str, Any]) -> list[Event]:
        self._is_open = True
        named = {"id": f"{prefix}_{self._request_id}_{len(self.items)}", **item, "status": "in_progress"}
        self.items.append(cast(OutputItem, named))
        added = self._event("response.output_item.added", item=dict(self.items[-1]))
        del added["item_id"]
        return [added]

    def _grow(self, text: str) -> Event:
        item = self.items[-1]
        item["content"][0]["text"] += text
        event = self._event(f"{_TEXT_EVENTS[item['type']]}.delta", content_index=0, delta=text)
        if item["type"] == "message":
            event["logprobs"] = []
        return event

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}
