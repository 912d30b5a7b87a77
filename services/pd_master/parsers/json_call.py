"""A call written as JSON: `{"name": ..., "arguments": {...}}`, read while it comes.

Arguments leave as the characters the model wrote, so what has been sent is a prefix of valid JSON at any time.
"""

import json
from collections.abc import Container, Generator

from services.pd_master.parsers.pieces import Output
from services.pd_master.parsers.reader import Emit, Reader, Wait

_ARGUMENT_KEYS = ("arguments", "parameters")
_CLOSING = {"{": "}", "[": "]"}


class NotJsonError(Exception):
    """The text is not what a call looks like."""


def json_call(reader: Reader, output: Output, known: Container[str] | None = None) -> Generator[None, None, None]:
    """Read one call object; `known` are the names that make it one, where nothing else marks a call.

    Raises NotJsonError when it is none. Once a call has begun it is never taken back: what is no JSON after that ends
    it.
    """
    call = _Call(output, reader, known)
    try:
        yield from expect(reader, "{")
        while (yield from _next_key(reader)):
            key = yield from json_string(reader)
            yield from expect(reader, ":")
            yield from call.field(key)
        call.finish()
    except NotJsonError:
        if not call.started:
            raise
    output.end_call()


class _Call:
    """What is known so far of the call that is being read."""

    def __init__(self, output: Output, reader: Reader, known: Container[str] | None) -> None:
        self.started = False
        self._output = output
        self._reader = reader
        self._known = known
        self._name: str | None = None
        self._early = "{}"
        """Arguments that came before the name."""

    def field(self, key: str) -> Generator[None, None, None]:
        """Take the value of one field."""
        if key == "name" and self._name is None:
            yield from self._reader.skip_space()
            self._name = yield from json_string(self._reader)
            if self._known is not None and self._name not in self._known:
                raise NotJsonError
        elif key in _ARGUMENT_KEYS and self._name is not None and not self.started:
            self._start()
            yield from json_arguments(self._reader, self._output.arguments)
        else:
            parts: list[str] = []
            yield from json_arguments(self._reader, parts.append)
            if key in _ARGUMENT_KEYS:
                self._early = "".join(parts)

    def finish(self) -> None:
        """The object is whole. Raises NotJsonError when it named nothing."""
        if not self.started:
            self._start()
            self._output.arguments(self._early)

    def _start(self) -> None:
        if self._name is None:
            raise NotJsonError
        self.started = True
        self._reader.recorded()
        self._output.start_call(self._name)


def json_arguments(reader: Reader, emit: Emit) -> Generator[None, None, None]:
    """Pass on one JSON value. A string is taken for JSON text in quotes, which some models write."""
    first = yield from reader.skip_space()
    if first == '"':
        emit((yield from json_string(reader)))
    elif first in _CLOSING:
        yield from _nested(reader, emit)
    else:
        yield from _scalar(reader, emit)


def json_string(reader: Reader) -> Wait[str]:
    """Read one JSON string and return its value. Raises NotJsonError."""
    yield from expect(reader, '"')
    raw = ['"']
    escaped = False
    while True:
        char = yield from reader.take(1)
        raw.append(char)
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"':
            break
    try:
        value: str = json.loads("".join(raw), strict=False)
    except ValueError as error:
        raise NotJsonError from error
    return value


def expect(reader: Reader, char: str) -> Generator[None, None, None]:
    """Read one character after white space. Raises NotJsonError when it is another."""
    if (yield from reader.skip_space()) != char:
        raise NotJsonError
    reader.consume(1)


def _next_key(reader: Reader) -> Wait[bool]:
    """Whether another key follows; the closing brace is consumed."""
    char = yield from reader.skip_space()
    if char == ",":
        reader.consume(1)
        char = yield from reader.skip_space()
    if char == "}":
        reader.consume(1)
        return False
    if char != '"':
        raise NotJsonError
    return True


def _nested(reader: Reader, emit: Emit) -> Generator[None, None, None]:
    """Pass on an object or array up to its own end."""
    depth = 0
    in_string = escaped = False
    while True:
        text = yield from reader.available()
        for at, char in enumerate(text):
            if in_string:
                in_string, escaped = escaped or char != '"', char == "\\" and not escaped
            elif char == '"':
                in_string = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if depth == 0:
                    emit(reader.consume(at + 1))
                    return
        emit(reader.consume(len(text)))


def _scalar(reader: Reader, emit: Emit) -> Generator[None, None, None]:
    """Pass on a number, true, false or null; its end is what follows it."""
    while True:
        char = (yield from reader.available())[0]
        if char in ",}] \t\r\n":
            return
        emit(reader.consume(1))
