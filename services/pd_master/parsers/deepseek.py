"""DeepSeek V3, R1 and V3.1: calls between marks, the name before a separator and the arguments as JSON after it.

V3 writes `function<sep>name` and puts the arguments into a fenced block; V3.1 writes `name<sep>{...}`.
"""

import contextlib
from collections.abc import Generator

from services.pd_master.parsers.json_call import NotJsonError, json_arguments
from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```json"


def deepseek(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
    """Text, then a block of calls, then text."""
    while True:
        mark = yield from reader.pass_until((CALLS, CALL), output.content)
        if mark == CALLS:
            _, mark = yield from reader.read_until(CALL, CALLS_END)
        while mark == CALL:
            yield from _call(reader, output)
            _, mark = yield from reader.read_until(CALL, CALLS_END)


def _call(reader: Reader, output: Output) -> Generator[None, None, None]:
    reader.record(CALL)
    name, _ = yield from reader.read_until(SEPARATOR)
    if name.strip() == "function":
        name, _ = yield from reader.read_until(_FENCE)
    reader.recorded()
    output.start_call(name.strip())
    with contextlib.suppress(NotJsonError):  # a broken string of arguments ends where the call ends
        yield from json_arguments(reader, output.arguments)
    yield from reader.read_until(CALL_END)
    output.end_call()
