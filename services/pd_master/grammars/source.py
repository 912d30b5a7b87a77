"""Grammar sources of each kind, bounded and checked as far as it goes without compiling; engines do the rest."""

import json
from typing import Any

from services.common.errors import InvalidRequestError
from services.common.request import GrammarKind, GrammarSpec
from services.pd_master.grammars.json_schema import checked_schema

MAX_SOURCE_BYTES = 64 << 10
MAX_CHOICES = 4096
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def schema_grammar(schema: object, field: str) -> GrammarSpec:
    """A JSON schema, or its text. Raises InvalidRequestError naming the place at fault."""
    if isinstance(schema, str):
        schema = _parsed(schema, field)
    return _bounded(GrammarKind.JSON_SCHEMA, json.dumps(checked_schema(schema, field)), field)


def regex_grammar(pattern: object, field: str) -> GrammarSpec:
    """A regular expression for the whole output."""
    return _bounded(GrammarKind.REGEX, _text(pattern, field), field)


def ebnf_grammar(source: object, field: str) -> GrammarSpec:
    """Rules of which `root` is the start."""
    return _bounded(GrammarKind.EBNF, _text(source, field), field)


def choice_grammar(choices: object, field: str) -> GrammarSpec:
    """One of several texts."""
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise InvalidRequestError(f"{field}: must be a list of texts, none of them empty", param=field)
    if len(choices) > MAX_CHOICES:
        raise InvalidRequestError(f"{field}: more than {MAX_CHOICES} choices", param=field)
    return _bounded(GrammarKind.EBNF, "root ::= " + " | ".join(_literal(one) for one in choices), field)


def tag_grammar(form: dict[str, Any], field: str) -> GrammarSpec:
    """A structural tag's `format`, or a whole tag."""
    tag = form if form.get("type") == "structural_tag" else {"type": "structural_tag", "format": form}
    return _bounded(GrammarKind.STRUCTURAL_TAG, json.dumps(tag), field)


def tag_text_grammar(tag: object, field: str) -> GrammarSpec:
    """A structural tag, or its text."""
    form = _parsed(tag, field) if isinstance(tag, str) else tag
    if not isinstance(form, dict):
        raise InvalidRequestError(f"{field}: must be an object", param=field)
    return tag_grammar(form, field)


def checked_spec(spec: GrammarSpec, field: str) -> GrammarSpec:
    """A grammar that came whole, checked as those made here are."""
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return schema_grammar(spec.source, field)
        case GrammarKind.REGEX | GrammarKind.EBNF:
            return _bounded(spec.kind, _text(spec.source, field), field)
        case GrammarKind.STRUCTURAL_TAG:
            return tag_text_grammar(spec.source, field)


def _parsed(text: str, field: str) -> Any:  # noqa: ANN401  JSON has no type
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{field}: not valid JSON: {error}", param=field) from error


def _bounded(kind: GrammarKind, source: str, field: str) -> GrammarSpec:
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise InvalidRequestError(f"{field}: longer than {MAX_SOURCE_BYTES} bytes", param=field)
    return GrammarSpec(kind, source, field)


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequestError(f"{field}: must be text, and not empty", param=field)
    return value


def _literal(text: str) -> str:
    """A text in quotes, as the compiler's EBNF reads it."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 else char
