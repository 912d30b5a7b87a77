"""Mistral: `[TOOL_CALLS]` and then a list of call objects, or since v11 `name[ARGS]{...}` with a mark before each
call."""

from collections.abc import Generator

from services.pd_master.parsers.json_call import NotJsonError, expect, json_arguments, json_call
from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

START, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


def mistral(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
    """Text, then calls."""
    while True:
        yield from reader.pass_until((START,), output.content)
        reader.record(START)
        try:
            if (yield from reader.skip_space()) == "[":
                yield from _list(reader, output)
            else:
                yield from _named(reader, output)
        except NotJsonError:
            output.content(reader.recorded())


def _list(reader: Reader, output: Output) -> Generator[None, None, None]:
    reader.consume(1)
    while True:
        yield from json_call(reader, output)
        if (yield from reader.skip_space()) == "]":
            reader.consume(1)
            return
        reader.record()
        yield from expect(reader, ",")


def _named(reader: Reader, output: Output) -> Generator[None, None, None]:
    call_id = None
    name, mark = yield from reader.read_until(CALL_ID, ARGUMENTS, "{")
    if mark == CALL_ID:
        call_id, mark = yield from reader.read_until(ARGUMENTS, "{")
    if mark == "{":
        reader.unread(mark)
    reader.recorded()
    output.start_call(name.strip(), call_id)
    yield from json_arguments(reader, output.arguments)
    output.end_call()
