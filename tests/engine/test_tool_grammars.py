"""What a forced call's grammar allows, the parser of the same family reads as that call: whatever a model draws."""

import json
import random
from typing import Any

import jsonschema_rs
import pytest
import xgrammar

from services.pd_master.grammars.source import tag_grammar
from services.pd_master.grammars.thoughts import after_thoughts
from services.pd_master.grammars.tool_calls import Forced, Function, forced_calls
from services.pd_master.parsers.choose import FAMILIES, Thoughts
from services.pd_master.parsers.parser import AnswerParser
from services.pd_master.parsers.pieces import Content, Reasoning, ToolArguments, ToolStart
from services.pd_master.parsers.think import think

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Z\u00fcrich", "New York"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"type": "array", "items": {"enum": ["c", "f"]}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"],
         "additionalProperties": False}  # fmt: skip
SCHEMAS: dict[str, dict[str, Any]] = {"get-weather": WEATHER, "clock": CLOCK}
FUNCTIONS = [Function(name, schema) for name, schema in SCHEMAS.items()]
FORCED = sorted(FAMILIES.keys() - {"harmony"})
_END = 256
_MARKS = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "[TOOL_CALLS]")
"""Special tokens of this test's vocabulary, beyond its bytes and its end."""


def special_id(mark: str) -> int | None:
    return _END + 1 + _MARKS.index(mark) if mark in _MARKS else None


def draw(form: dict[str, Any], seed: int) -> str:
    """Walk at random through the form, printable characters and an end preferred; the text with its special marks."""
    pieces = [bytes([byte]) for byte in range(256)] + [b""] + [b"\xff\xfe%d" % i for i in range(len(_MARKS))]
    info = xgrammar.TokenizerInfo(pieces, xgrammar.VocabType.RAW, stop_token_ids=[_END])
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(tag_grammar(form, "tool_choice").source)
    matcher, mask = xgrammar.GrammarMatcher(compiled), xgrammar.allocate_token_bitmask(1, len(pieces))
    chance, out = random.Random(seed), b""
    while True:
        mask.fill_(-1)
        matcher.fill_next_token_bitmask(mask)
        allowed = [token for token in range(len(pieces)) if int(mask[0, token // 32]) >> (token % 32) & 1]
        if _END in allowed and (len(allowed) == 1 or chance.random() < 0.7):
            return out.decode()
        fine = [token for token in allowed if 33 <= token < 127 or token > _END] or [t for t in allowed if t != _END]
        token = chance.choice(fine)
        assert matcher.accept_token(token)
        out += bytes([token]) if token < _END else _MARKS[token - _END - 1].encode()
        assert len(out) < 5000, out


def read(family: str, text: str, *, thinks: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Thoughts and calls, read a character at a time."""
    reasoning = think(inside=True) if thinks else None
    parser = AnswerParser(reasoning, FAMILIES[family].parse, SCHEMAS, lambda: "id")
    pieces = [piece for char in text for piece in parser.push(char)] + parser.close()
    calls: list[tuple[str, str]] = []
    thoughts = ""
    for piece in pieces:
        match piece:
            case ToolStart():
                calls.append((piece.name, ""))
            case ToolArguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + piece.text)
            case Content():
                assert not piece.text.strip(), text
            case Reasoning():
                thoughts += piece.text
    return thoughts, calls


def forced(*, only_one: bool, template: str = "") -> Forced:
    return Forced(FUNCTIONS, only_one, template, special_id)


@pytest.mark.parametrize("template", ["", "```json [ARGS]"])
@pytest.mark.parametrize("family", FORCED)
def test_calls_are_read_as_they_were_drawn(family: str, template: str) -> None:
    form = forced_calls(family, forced(only_one=False, template=template))
    assert form is not None
    for seed in range(8):
        text = draw(form, seed)
        _, calls = read(family, text)
        assert calls, text
        for name, arguments in calls:
            assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), text


@pytest.mark.parametrize("family", FORCED)
def test_one_call_and_no_more(family: str) -> None:
    form = forced_calls(family, forced(only_one=True))
    assert form is not None
    assert all(len(read(family, draw(form, seed))[1]) == 1 for seed in range(4))


def test_thoughts_come_first_and_are_free() -> None:
    form = forced_calls("hermes", forced(only_one=True))
    assert form is not None
    assert after_thoughts(form, Thoughts.NONE) is form
    begun = after_thoughts(form, Thoughts.BEGUN)
    call = '<tool_call>\n{"name": "clock", "arguments": {"utc": true}}\n</tool_call>'
    assert read("hermes", "Why?</think>\n\n" + call, thinks=True) == ("Why?", [("clock", '{"utc": true}')])
    for whole, text in [
        (begun, "Why?</think>\n\n" + call),
        (after_thoughts(form, Thoughts.POSSIBLE), "<think>Why?</think>\n\n" + call),
        (after_thoughts(form, Thoughts.POSSIBLE), call),
    ]:
        assert accepts(whole, text)
        assert not accepts(whole, text + "!")
    assert not accepts(begun, call)


def accepts(form: dict[str, Any], text: str) -> bool:
    info = xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)] + [b""], stop_token_ids=[_END])
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(tag_grammar(form, "tool_choice").source)
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(text) and matcher.is_completed()
