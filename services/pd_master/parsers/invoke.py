"""Calls written as `<invoke name="..."><parameter name="...">value</parameter></invoke>` inside a block.

DeepSeek V3.2 prefixes its tags and says of each value whether it is a string; MiniMax M2 leaves that to the schema.
"""

import re
from collections.abc import Generator

from services.pd_master.parsers.parser import Family, ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader
from services.pd_master.parsers.typed_arguments import TypedArguments

_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')


def invoke(block: str, prefix: str = "") -> Family:
    """`block`: the outer tag's name; `prefix`: what stands before every tag's name."""
    block_start, block_end = f"<{prefix}{block}>", f"</{prefix}{block}>"
    call_start, call_end = f"<{prefix}invoke", f"</{prefix}invoke>"
    parameter, parameter_end = f"<{prefix}parameter", f"</{prefix}parameter>"

    def call(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
        reader.record(call_start)
        head, _ = yield from reader.read_until(">")
        name = dict(_ATTRIBUTE.findall(head)).get("name", "")
        reader.recorded()
        output.start_call(name)
        arguments = TypedArguments(output, tools.get(name))
        while (yield from reader.read_until(parameter, call_end))[1] == parameter:
            head, _ = yield from reader.read_until(">")
            attributes = dict(_ATTRIBUTE.findall(head))
            value, _ = yield from reader.read_until(parameter_end)
            declared = attributes.get("string")
            arguments.add(attributes.get("name", ""), value, is_string=None if declared is None else declared == "true")
        arguments.end()
        output.end_call()

    def family(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
        while True:
            yield from reader.pass_until((block_start,), output.content)
            while (yield from reader.read_until(call_start, block_end))[1] == call_start:
                yield from call(reader, output, tools)
            output.end_call()

    return family


deepseek_v32 = invoke("function_calls", "｜DSML｜")
minimax_m2 = invoke("minimax:tool_call")
