"""Kimi K2: calls between marks, each with an id `functions.<name>:<number>` before its arguments."""

import contextlib
from collections.abc import Generator

from services.pd_master.parsers.json_call import NotJsonError, json_arguments
from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def kimi(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
    """Text, then a section of calls, then text."""
    while True:
        yield from reader.pass_until((SECTION,), output.content)
        while (yield from reader.read_until(CALL, SECTION_END))[1] == CALL:
            yield from _call(reader, output)


def _call(reader: Reader, output: Output) -> Generator[None, None, None]:
    reader.record(CALL)
    call_id = (yield from reader.read_until(ARGUMENTS))[0].strip()
    reader.recorded()
    name = call_id.removeprefix("functions.").rpartition(":")[0] or call_id
    output.start_call(name, call_id)
    with contextlib.suppress(NotJsonError):  # a broken string of arguments ends where the call ends
        yield from json_arguments(reader, output.arguments)
    yield from reader.read_until(CALL_END)
    output.end_call()
