"""What a forced call's grammar allows, the parser of the same family reads as that call: whatever a model draws."""

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest
import xgrammar

from services.pd_master.grammars import harmony
from services.pd_master.grammars.forms import SpecialId
from services.pd_master.grammars.source import tag_grammar
from services.pd_master.grammars.thoughts import after_thoughts
from services.pd_master.grammars.tool_calls import (
    _FAMILIES,
    Forced,
    Function,
    answer_or_calls,
    forced_calls,
    free_calls,
)
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
_MARKS = (
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "[TOOL_CALLS]", "<|channel|>", "<|message|>", "<|end|>",
    "<|start|>", "<|constrain|>",
)  # fmt: skip
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


def ids_of(text: str) -> list[int]:
    """Bytes, and the marks that are special tokens."""
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, _MARKS)) + ")", text):
        ids += [_END + 1 + _MARKS.index(part)] if part in _MARKS else list(part.encode())
    return ids


def takes(form: dict[str, Any], text: str) -> bool:
    """Whether the text, with its special marks, is whole under the form."""
    pieces = [bytes([byte]) for byte in range(256)] + [b""] + [b"\xff\xfe%d" % i for i in range(len(_MARKS))]
    info = xgrammar.TokenizerInfo(pieces, xgrammar.VocabType.RAW, stop_token_ids=[_END])
    matcher = xgrammar.GrammarMatcher(
        xgrammar.GrammarCompiler(info).compile_structural_tag(tag_grammar(form, "tools").source)
    )
    return all(matcher.accept_token(token) for token in ids_of(text)) and matcher.is_completed()


@pytest.mark.parametrize("template", ["", "```json [ARGS]"])
@pytest.mark.parametrize("family", sorted(_FAMILIES))
def test_a_free_answer_may_call_and_then_keeps_to_the_schema(family: str, template: str) -> None:
    """What may be forced may come by itself, with text before it; what begins like a call and is none may not."""
    one = forced(only_one=True, template=template)
    free, made = free_calls(family, one), forced_calls(family, one)
    assert free is not None
    assert made is not None
    call = draw(made, 3)
    assert takes(free, "Nothing to call.")
    assert takes(free, "Let me look. " + call)
    assert not takes(free, "Let me look. " + call + call)  # one call and no more
    start = _FAMILIES[family](one).start
    assert not takes(free, start + "whatever" + call.removeprefix(start))
    several = free_calls(family, forced(only_one=False, template=template))
    assert several is not None
    assert takes(several, call + " And again: " + call)


ANSWER = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"tree": {"const": "oak"}},
          "required": ["tree"], "additionalProperties": False}}  # fmt: skip


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_answer_of_a_given_form_leaves_the_choice_to_call(family: str) -> None:
    one = forced(only_one=True)
    form, made = answer_or_calls(ANSWER, family, one), forced_calls(family, one)
    assert form is not None
    assert made is not None
    begin = "<|channel|>final<|message|>" if family == "harmony" else ""
    assert takes(form, CALL if family == "harmony" else draw(made, 5))
    assert takes(form, begin + '{"tree": "oak"}')
    assert not takes(form, begin + '{"tree": "elm"}')
    assert not takes(form, begin + "An oak.")


def test_a_family_without_a_mark_cannot_be_held_to_schemas_where_it_may_call() -> None:
    assert free_calls("llama3", forced(only_one=True)) is None


CALL = '<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{"utc": true}'
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
ASIDE = "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant"


@pytest.mark.parametrize("marks", [special_id, lambda _: None])
def test_harmony_answers_and_calls_have_their_form_and_what_comes_before_is_free(marks: SpecialId) -> None:
    one = Forced(FUNCTIONS, only_one=True, template="", special_id=marks)
    calls, free = forced_calls("harmony", one), free_calls("harmony", one)
    assert calls is not None
    assert free is not None
    final = harmony.answer({"type": "json_schema", "json_schema": CLOCK, "style": "json"}, marks)

    def check(form: dict[str, Any], text: str) -> bool:
        return takes(form, text) if marks is special_id else accepts(form, text)

    for before in ("", THOUGHT, THOUGHT + ASIDE + THOUGHT):
        assert check(calls, before + CALL)
        assert check(free, before + CALL)
        assert check(free, before + "<|channel|>final<|message|>It is noon.")
        assert not check(calls, before + "<|channel|>final<|message|>It is noon.")
        assert not check(free, before + CALL.replace("true", '"yes"'))
    assert check(final, THOUGHT + '<|channel|>final<|message|>{"utc": false}')
    assert not check(final, THOUGHT + "<|channel|>final<|message|>noon")
    assert not check(final, THOUGHT + CALL)


def test_a_forced_harmony_call_is_read_as_it_was_made() -> None:
    parser = AnswerParser(None, FAMILIES["harmony"].parse, SCHEMAS, lambda: "id")
    pieces = [piece for char in THOUGHT + CALL for piece in parser.push(char)] + parser.close()
    assert "".join(piece.text for piece in pieces if isinstance(piece, Reasoning)) == "Hm."
    assert [piece.name for piece in pieces if isinstance(piece, ToolStart)] == ["clock"]
    assert "".join(piece.text for piece in pieces if isinstance(piece, ToolArguments)) == '{"utc": true}'


def accepts(form: dict[str, Any], text: str) -> bool:
    info = xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)] + [b""], stop_token_ids=[_END])
    compiled = xgrammar.GrammarCompiler(info).compile_structural_tag(tag_grammar(form, "tool_choice").source)
    matcher = xgrammar.GrammarMatcher(compiled)
    return matcher.accept_string(text) and matcher.is_completed()
