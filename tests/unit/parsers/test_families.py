"""Every family, by table: what a model writes, and what it means, however the text is cut into parts."""

import json
import random
from itertools import count
from typing import Any, NamedTuple

import pytest

from services.pd_master.parsers.choose import FAMILIES, reasoning_family, tool_family
from services.pd_master.parsers.parser import AnswerParser, ToolSchemas
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart
from services.pd_master.parsers.think import think

SCHEMAS: ToolSchemas = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "tags": {"type": "array"},
            "unit": {"enum": ["c", "f"]},
        },
    },
    "stop": {"type": "object", "properties": {}},
}


class Answer(NamedTuple):
    """What an output amounts to."""

    content: str
    calls: list[tuple[str, Any]]
    reasoning: str = ""


def parse(family: str | None, parts: list[str], inside: bool | None = None) -> tuple[Answer, list[Piece]]:
    """Run a parser over the parts. `inside` turns on reasoning."""
    numbers = count()
    tools = FAMILIES[family].parse if family else None
    reasoning = None if inside is None else think(inside=inside)
    parser = AnswerParser(reasoning, tools, SCHEMAS, lambda: f"call_{next(numbers)}")
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.close()
    return whole(pieces), pieces


def whole(pieces: list[Piece]) -> Answer:
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    names = [piece.name for piece in pieces if isinstance(piece, ToolStart)]
    arguments = ["" for _ in names]
    for piece in pieces:
        if isinstance(piece, ToolArguments):
            arguments[piece.number] += piece.text
    return Answer(content, list(zip(names, arguments, strict=True)), reasoning)


def cuts(text: str) -> list[list[str]]:
    """The text whole, character by character, and cut at random."""
    draw = random.Random(len(text))
    ways = [[text], list(text)]
    for _ in range(8):
        marks = sorted(draw.sample(range(len(text) + 1), min(6, len(text))))
        ways.append([text[start:end] for start, end in zip([0, *marks], [*marks, len(text)], strict=True)])
    return ways


ZURICH = '{"city": "Zürich \\"}{", "days": 3}'
V3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"

CASES: list[tuple[str, str, Answer]] = [
    # hermes
    ("hermes", "Just text.", Answer("Just text.", [])),
    ("hermes", " leading space stays", Answer(" leading space stays", [])),
    ("hermes", "a < b and <tool> is no mark <tool_cal", Answer("a < b and <tool> is no mark <tool_cal", [])),
    (
        "hermes",
        'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": ' + ZURICH + "}\n</tool_call>",
        Answer("Let me look.\n", [("get_weather", ZURICH)]),
    ),
    (
        "hermes",
        '<tool_call>\n{"arguments": ' + ZURICH + ', "name": "get_weather"}\n</tool_call>\n'
        '<tool_call>{"name":"stop","arguments":{}}</tool_call>\nDone.',
        Answer("\nDone.", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    ("hermes", '<tool_call>{"name": "stop"}</tool_call>', Answer("", [("stop", "{}")])),
    (
        "hermes",
        '<tool_call>{"name": "stop", "arguments": "{\\"a\\": 1}"}</tool_call>',
        Answer("", [("stop", '{"a": 1}')]),
    ),
    ("hermes", "see <tool_call>this</tool_call>!", Answer("see <tool_call>this</tool_call>!", [])),
    ("hermes", '<tool_call>{"na', Answer('<tool_call>{"na', [])),
    ("hermes", '<tool_call>{"name": "stop", "arguments": {"a": [1, {"b"', Answer("", [("stop", '{"a": [1, {"b"')])),
    # llama 3
    (
        "llama3",
        '{"name": "get_weather", "parameters": ' + ZURICH + "}",
        Answer("", [("get_weather", ZURICH)]),
    ),
    (
        "llama3",
        '<|python_tag|>{"name": "stop", "parameters": {}}; {"name": "get_weather", "parameters": {"days": 1}}',
        Answer("", [("stop", "{}"), ("get_weather", '{"days": 1}')]),
    ),
    ("llama3", '{"name": "Ada", "age": 36}', Answer('{"name": "Ada", "age": 36}', [])),
    ("llama3", "The answer is {42}.", Answer("The answer is {42}.", [])),
    ("llama3", '  {"x": 1}', Answer('  {"x": 1}', [])),
    # mistral
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": ' + ZURICH + '}, {"name": "stop", "arguments": {}}]',
        Answer("", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    (
        "mistral",
        "Looking.[TOOL_CALLS]get_weather[ARGS]" + ZURICH + "[TOOL_CALLS]stop{}",
        Answer("Looking.", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    ("mistral", "[TOOL_CALLS]stop[CALL_ID]abc123xyz[ARGS]{}", Answer("", [("stop", "{}")])),
    ("mistral", "[TOOL_", Answer("[TOOL_", [])),
    # deepseek
    (
        "deepseek",
        f"Sure.{V3}function<｜tool▁sep｜>get_weather\n```json\n{ZURICH}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Answer("Sure.", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    (
        "deepseek",
        f"{V3}get_weather<｜tool▁sep｜>{ZURICH}<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{{}}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        Answer("", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    (
        "deepseek_v32",
        'Yes.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Zü"rich</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        Answer("Yes.\n\n", [("get_weather", '{"city": "Zü\\"rich", "days": 3}'), ("stop", "{}")]),
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="days">3</parameter>\n'
        '<parameter name="city">7</parameter>\n</invoke>\n</minimax:tool_call>',
        Answer("", [("get_weather", '{"days": 3, "city": "7"}')]),
    ),
    # qwen3 coder
    (
        "qwen3_coder",
        "Ok.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\nWest\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n[1, "a"]\n</parameter>\n'
        "<parameter=unit>\nc\n</parameter>\n<parameter=other>\n5\n</parameter>\n</function>\n</tool_call>",
        Answer(
            "Ok.\n",
            [
                (
                    "get_weather",
                    '{"city": "Zürich\\nWest", "days": 3, "metric": true, "tags": [1, "a"], "unit": "c", "other": "5"}',
                )
            ],
        ),
    ),
    ("qwen3_coder", "<function=stop>\n</function>", Answer("", [("stop", "{}")])),
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3", Answer("", [("get_weather", "")])),
    # glm
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call><tool_call>stop</tool_call>",
        Answer("", [("get_weather", '{"city": "Zürich", "days": 3}'), ("stop", "{}")]),
    ),
    # kimi
    (
        "kimi_k2",
        "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        + ZURICH
        + "<|tool_call_end|><|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        Answer("Hm.", [("get_weather", ZURICH), ("stop", "{}")]),
    ),
    # gpt-oss
    (
        "harmony",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"days": 1}<|call|>',
        Answer("", [("get_weather", '{"days": 1}')], "Think."),
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Hello <3<|return|>",
        Answer("Hello <3", [], "Think."),
    ),
    ("harmony", "No marks at all.", Answer("No marks at all.", [])),
]
CASE_NAMES = [f"{name}-{at}" for at, (name, *_) in enumerate(CASES)]


@pytest.mark.parametrize(
    ("family", "text", "expected"), CASES, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(CASES)]
)
def test_any_cut_gives_the_same_answer(family: str, text: str, expected: Answer) -> None:
    for parts in cuts(text):
        answer, pieces = parse(family, parts)
        assert answer == expected, parts
        assert all(getattr(piece, "text", "x") for piece in pieces)


@pytest.mark.parametrize(
    ("family", "text", "expected"), CASES, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(CASES)]
)
def test_arguments_of_whole_calls_are_json(family: str, text: str, expected: Answer) -> None:
    truncated = {'{"a": [1, {"b"', ""}
    for _, arguments in expected.calls:
        if arguments not in truncated:
            json.loads(arguments)
    assert parse(family, [text])[0] == expected


THOUGHTS = [
    (False, "<think>\nHm.\n</think>\n\nHello", Answer("Hello", [], "\nHm.\n")),
    (True, "Hm.</think>Hello", Answer("Hello", [], "Hm.")),
    (True, "never ends </thin", Answer("", [], "never ends </thin")),
    (False, "No thoughts. <think> later", Answer("No thoughts. <think> later", [])),
    (False, "  \n<think>x</think>y", Answer("y", [], "x")),
    (False, " <thin air", Answer(" <thin air", [])),
    (
        False,
        '<think>I call.</think>\n\n<tool_call>{"name": "stop", "arguments": {}}</tool_call>',
        Answer("", [("stop", "{}")], "I call."),
    ),
    (
        True,
        '<tool_call>{"name": "stop"}</tool_call></think>Ok',
        Answer("Ok", [], '<tool_call>{"name": "stop"}</tool_call>'),
    ),
]


@pytest.mark.parametrize(("inside", "text", "expected"), THOUGHTS, ids=range(len(THOUGHTS)))
@pytest.mark.parametrize("family", ["hermes", None])
def test_reasoning_comes_before_text_and_calls(inside: bool, text: str, expected: Answer, family: str | None) -> None:
    if family is None and expected.calls:
        pytest.skip("calls need a family")
    for parts in cuts(text):
        assert parse(family, parts, inside)[0] == expected, parts


def test_arguments_grow_while_the_model_writes_them() -> None:
    numbers = count()
    parser = AnswerParser(None, FAMILIES["hermes"].parse, SCHEMAS, lambda: str(next(numbers)))
    seen = ""
    for char in '<tool_call>{"name": "stop", "arguments": {"a": "bc"}}</tool_call>':
        seen += "".join(piece.text for piece in parser.push(char) if isinstance(piece, ToolArguments))
        assert '{"a": "bc"}'.startswith(seen)
    assert seen == '{"a": "bc"}'


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call> ...", "hermes"),
        ("... <tool_call>\n<function= ...", "qwen3_coder"),
        ("... <tool_call> <arg_key> ...", "glm"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<|channel|>analysis", "harmony"),
        ("plain", None),
    ],
)
def test_template_tells_the_family(template: str, name: str | None) -> None:
    family = tool_family(template)
    assert (family.name if family else None) == name


@pytest.mark.parametrize(
    ("prompt", "output", "reasoning"),
    [
        ("<|assistant|>\n<think>\n", "deep</think>x", "deep"),
        ("<|assistant|>\n", "<think>deep</think>x", "deep"),
        ("<|assistant|>\n<think>\n\n</think>\n\n", "x", ""),
        ("<think>old</think> answer <|assistant|>", "x", ""),
        ("the user wrote <think> here <|assistant|>", "x", ""),
    ],
)
def test_prompt_tells_whether_the_output_begins_inside_a_thought(prompt: str, output: str, reasoning: str) -> None:
    family = reasoning_family("{{ '<think>' }}", prompt)
    parser = AnswerParser(family, None, {}, str)
    answer = whole(parser.push(output) + parser.close())
    assert (answer.content, answer.reasoning) == ("x", reasoning)


def test_template_without_marks_has_no_reasoning() -> None:
    assert reasoning_family("plain", "prompt") is None
