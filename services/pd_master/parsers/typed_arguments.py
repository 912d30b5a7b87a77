"""Arguments that a model writes as text between tags become JSON by the function's schema."""

import json
from typing import Any

from services.pd_master.parsers.pieces import Output

_WORDS = {"true": True, "false": False, "none": None, "null": None}


class TypedArguments:
    """Writes one call's arguments into the output, a member at a time; between members it is a prefix of valid JSON."""

    def __init__(self, output: Output, schema: dict[str, Any] | None) -> None:
        """`schema`: of the function's parameters; without it every value is a string."""
        properties = (schema or {}).get("properties")
        self._properties: dict[str, Any] = properties if isinstance(properties, dict) else {}
        self._output = output
        self._separator = "{"

    def add(self, name: str, text: str, *, is_string: bool | None = None) -> None:
        """The next argument; `is_string` is known where the format itself says it."""
        string = self._is_string(name) if is_string is None else is_string
        value = text if string else _value(text)
        self._output.arguments(f"{self._separator}{_json(name)}: {_json(value)}")
        self._separator = ", "

    def end(self) -> None:
        """All arguments are there."""
        self._output.arguments("{}" if self._separator == "{" else "}")

    def _is_string(self, name: str) -> bool:
        schema = self._properties.get(name)
        kind = schema.get("type") if isinstance(schema, dict) else "string"
        return kind == "string" or (kind is None and _has_string_enum(schema))


def _has_string_enum(schema: object) -> bool:
    values = schema.get("enum") if isinstance(schema, dict) else None
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _value(text: str) -> object:
    """JSON where it is JSON, Python's words for constants, else the text."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return json.loads(word)
    except ValueError:
        return text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
