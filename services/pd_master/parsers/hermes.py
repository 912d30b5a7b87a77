"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, text around them."""

from collections.abc import Generator

from services.pd_master.parsers.json_call import NotJsonError, json_call
from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

START, END = "<tool_call>", "</tool_call>"


def hermes(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
    """Text, then calls, then text."""
    while True:
        yield from reader.pass_until((START,), output.content)
        reader.record(START)
        try:
            yield from json_call(reader, output)
        except NotJsonError:
            output.content(reader.recorded())
            continue
        yield from reader.pass_until((END,), _ignore)


def _ignore(text: str) -> None:
    """Between a call's object and its closing mark stands white space."""
