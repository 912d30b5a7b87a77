"""Qwen3-Coder: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`."""

from collections.abc import Generator

from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader
from services.pd_master.parsers.typed_arguments import TypedArguments

START, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


def qwen3_coder(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
    """Text, then calls, then text. The outer mark is left out by some models."""
    while True:
        mark = yield from reader.pass_until((START, FUNCTION), output.content)
        reader.record(mark)
        if mark == START:
            yield from reader.skip_space()
            if not (yield from reader.found(FUNCTION)):
                output.content(reader.recorded())
                continue
        yield from _call(reader, output, tools)
        if mark == START:
            yield from reader.read_until(END)
        output.end_call()


def _call(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
    name = (yield from reader.read_until(">"))[0].strip()
    reader.recorded()
    output.start_call(name)
    arguments = TypedArguments(output, tools.get(name))
    _, mark = yield from reader.read_until(PARAMETER, FUNCTION_END)
    while mark == PARAMETER:
        key, _ = yield from reader.read_until(">")
        value, mark = yield from reader.read_until(PARAMETER_END, PARAMETER, FUNCTION_END)
        arguments.add(key.strip(), value.removeprefix("\n").removesuffix("\n"))
        if mark == PARAMETER_END:
            _, mark = yield from reader.read_until(PARAMETER, FUNCTION_END)
    arguments.end()
