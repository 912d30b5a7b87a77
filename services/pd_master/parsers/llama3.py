"""Llama 3 JSON: an answer that is nothing but `{"name": ..., "parameters": {...}}`, several of them parted by `;`."""

from collections.abc import Generator

from services.pd_master.parsers.json_call import NotJsonError, json_call
from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

TAG = "<|python_tag|>"


def llama3(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:
    """Nothing marks a call but its form, so only objects that name a known function are calls."""
    reader.record()
    yield from reader.skip_space()
    yield from reader.found(TAG)
    try:
        while True:
            yield from json_call(reader, output, known=tools)
            separator = yield from reader.skip_space()
            if separator in ";,":
                reader.consume(1)
            elif separator != "{":
                return
            reader.record()
    except NotJsonError:
        output.content(reader.recorded())
