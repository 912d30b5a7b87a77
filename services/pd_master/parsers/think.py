"""Reasoning between `<think>` and `</think>` at the beginning of an answer: DeepSeek-R1, Qwen3, GLM-4.5, Kimi,
MiniMax, Step3."""

from collections.abc import Generator

from services.pd_master.parsers.parser import Family, ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

START, END = "<think>", "</think>"


def think(*, inside: bool) -> Family:
    """`inside`: the prompt ends with the opening mark, so the output begins with a thought."""

    def family(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
        if not inside:
            reader.record()
            yield from reader.skip_space()
            if not (yield from reader.found(START)):
                output.content(reader.recorded())
                return
            reader.recorded()
        yield from reader.pass_until((END,), output.reasoning)
        output.end_reasoning()

    return family
