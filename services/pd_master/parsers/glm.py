"""GLM 4.5 to 4.7: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`."""

from collections.abc import Generator

from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader
from services.pd_master.parsers.typed_arguments import TypedArguments

START, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"


def glm(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
    """Text, then calls, then text."""
    while True:
        yield from reader.pass_until((START,), output.content)
        reader.record(START)
        name, mark = yield from reader.read_until(KEY, END)
        reader.recorded()
        output.start_call(name.strip())
        arguments = TypedArguments(output, tools.get(name.strip()))
        while mark == KEY:
            key, _ = yield from reader.read_until(KEY_END)
            yield from reader.read_until(VALUE)
            value, _ = yield from reader.read_until(VALUE_END)
            arguments.add(key.strip(), value)
            _, mark = yield from reader.read_until(KEY, END)
        arguments.end()
        output.end_call()
