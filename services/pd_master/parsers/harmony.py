"""gpt-oss: messages on channels. `analysis` is reasoning, `final` is the answer, a message to `functions.<name>` a
call.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{...}<|call|>`
"""

import re
from collections.abc import Generator

from services.pd_master.parsers.parser import ToolSchemas
from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Reader

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=functions\.([\w.:-]+)")


def harmony(reader: Reader, output: Output, tools: ToolSchemas) -> Generator[None, None, None]:  # noqa: ARG001
    """Message after message; an answer that does not begin with a mark is plain text."""
    reader.record()
    head = yield from reader.peek(2)
    if not head.startswith("<|"):
        output.content(reader.recorded())
        return
    while True:
        head, _ = yield from reader.read_until(MESSAGE)
        reader.recorded()
        yield from _message(reader, output, head)
        reader.record()


def _message(reader: Reader, output: Output, head: str) -> Generator[None, None, None]:
    recipient = _RECIPIENT.search(head)
    channel = _CHANNEL.search(head)
    if recipient is not None:
        output.start_call(recipient[1])
        yield from reader.pass_until(_ENDS, output.arguments)
        output.end_call()
    elif channel is not None and channel[1] == "analysis":
        yield from reader.pass_until(_ENDS, output.reasoning)
    else:
        yield from reader.pass_until(_ENDS, output.content)
