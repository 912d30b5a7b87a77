"""The form in which each family of models writes calls, as a structural tag: where a call is forced, and where a model
may call but has to keep to the functions' schemas when it does.

What these forms allow, the parser of the same family reads (`services.pd_master.parsers`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from services.pd_master.grammars import harmony
from services.pd_master.grammars.forms import ANY_TEXT, Format, either, mark, sequence, text
from services.pd_master.parsers import deepseek, glm, hermes, kimi, mistral, qwen3_coder


class Function(NamedTuple):
    """One that may be called, with a checked schema of its parameters."""

    name: str
    parameters: Any


class Forced(NamedTuple):
    """What has to be called, and by whom."""

    functions: list[Function]
    only_one: bool
    """One call and no more."""
    template: str
    """The model's chat template: some families write in more than one way."""
    special_id: Callable[[str], int | None]
    """The id of a mark that is a special token; no text stands for it then."""


class Block(NamedTuple):
    """How a family writes calls: behind a mark that nothing else begins with."""

    start: str
    content: Format
    end: str = ""
    """Empty where the content ends by itself."""
    separator: str | None = None
    """Between blocks of one call each; None where one block holds all calls."""


def forced_calls(family: str, forced: Forced) -> Format | None:
    """At least one call; None for a family whose calls cannot be forced."""
    if family == "llama3":
        return _repeated(_any_call(forced, _json_call("parameters")), forced, "; ")
    if family == "harmony":
        return harmony.forced_calls(_harmony_calls(forced), forced.special_id)
    make = _FAMILIES.get(family)
    if make is None:
        return None
    block = make(forced)
    end = [mark(forced.special_id, block.end)] if block.end else []
    whole = sequence(mark(forced.special_id, block.start), block.content, *end)
    return whole if block.separator is None else _repeated(whole, forced, block.separator)


def answer_or_calls(answer: Format, family: str, forced: Forced) -> Format | None:
    """An answer of this form, or calls in its place; None for a family whose calls have no form."""
    if family == "harmony":
        return harmony.answer_or_call(answer, _harmony_calls(forced), forced.special_id)
    calls = forced_calls(family, forced)
    return None if calls is None else either([answer, calls])


def free_calls(family: str, forced: Forced) -> Format | None:
    """Any text, and calls of these functions where the family's mark begins one; None for a family without a mark."""
    if family == "harmony":
        return harmony.answer_or_call(ANY_TEXT, _harmony_calls(forced), forced.special_id)
    make = _FAMILIES.get(family)
    if make is None:
        return None
    block = make(forced)
    begin = forced.special_id(block.start)
    end = forced.special_id(block.end)
    tag = {
        "type": "tag",
        "content": block.content,
        "end": block.end if end is None else {"type": "token", "token": end},
    }
    how = {"at_least_one": False, "stop_after_first": forced.only_one}
    if begin is None:
        tags = [tag | {"begin": block.start}]
        return {"type": "triggered_tags", "triggers": [block.start], "tags": tags, **how}
    tags = [tag | {"begin": {"type": "token", "token": begin}}]
    return {"type": "token_triggered_tags", "trigger_tokens": [begin], "tags": tags, **how}


def _harmony_calls(forced: Forced) -> list[tuple[str, Format]]:
    return [(function.name, _schema(function)) for function in forced.functions]


def _schema(function: Function, style: str = "json") -> Format:
    return {"type": "json_schema", "json_schema": function.parameters, "style": style}


def _repeated(call: Format, forced: Forced, separator: str = "") -> Format:
    if forced.only_one:
        return call
    return sequence(call, {"type": "star", "content": sequence(text(separator), call) if separator else call})


def _json_call(arguments: str) -> Callable[[Function], Format]:
    def call(function: Function) -> Format:
        return sequence(text(f'{{"name": "{function.name}", "{arguments}": '), _schema(function), text("}"))

    return call


def _any_call(forced: Forced, call: Callable[[Function], Format]) -> Format:
    return either([call(function) for function in forced.functions])


def _hermes(forced: Forced) -> Block:
    call = _any_call(forced, _json_call("arguments"))
    return Block(hermes.START, sequence(text("\n"), call, text("\n")), hermes.END, "\n")


def _mistral(forced: Forced) -> Block:
    if mistral.ARGUMENTS not in forced.template:
        calls = _repeated(_any_call(forced, _json_call("arguments")), forced, ", ")
        return Block(mistral.START, sequence(text("["), calls), "]")

    def call(function: Function) -> Format:
        return sequence(text(function.name), mark(forced.special_id, mistral.ARGUMENTS), _schema(function))

    return Block(mistral.START, _any_call(forced, call), separator="")


def _deepseek(forced: Forced) -> Block:
    start, separator, end = (
        mark(forced.special_id, each) for each in (deepseek.CALL, deepseek.SEPARATOR, deepseek.CALL_END)
    )
    fenced = "```json" in forced.template

    def call(function: Function) -> Format:
        if not fenced:
            return sequence(start, text(function.name), separator, _schema(function), end)
        head = text(f"{function.name}\n```json\n")
        return sequence(start, text("function"), separator, head, _schema(function), text("\n```"), end)

    calls = _repeated(_any_call(forced, call), forced, "\n" if fenced else "")
    return Block(deepseek.CALLS, calls, deepseek.CALLS_END)


def _kimi(forced: Forced) -> Block:
    start, arguments, end = (mark(forced.special_id, each) for each in (kimi.CALL, kimi.ARGUMENTS, kimi.CALL_END))

    def call(function: Function) -> Format:
        name = {"type": "regex", "pattern": f"functions\\.{_quoted(function.name)}:\\d{{1,3}}"}
        return sequence(start, name, arguments, _schema(function), end)

    return Block(kimi.SECTION, _repeated(_any_call(forced, call), forced), kimi.SECTION_END)


def _qwen3_coder(forced: Forced) -> Block:
    def call(function: Function) -> Format:
        head = text(f"\n{qwen3_coder.FUNCTION}{function.name}>\n")
        return sequence(head, _schema(function, "qwen_xml"), text(f"\n{qwen3_coder.FUNCTION_END}\n"))

    return Block(qwen3_coder.START, _any_call(forced, call), qwen3_coder.END, "\n")


def _glm(forced: Forced) -> Block:
    def call(function: Function) -> Format:
        return sequence(text(f"{function.name}\n"), _schema(function, "glm_xml"), text("\n"))

    return Block(glm.START, _any_call(forced, call), glm.END, "\n")


def _invoke(block: str, prefix: str, style: str) -> Callable[[Forced], Block]:
    def family(forced: Forced) -> Block:
        def call(function: Function) -> Format:
            head = text(f'<{prefix}invoke name="{function.name}">\n')
            return sequence(head, _schema(function, style), text(f"\n</{prefix}invoke>\n"))

        calls = _repeated(_any_call(forced, call), forced)
        return Block(f"<{prefix}{block}>", sequence(text("\n"), calls), f"</{prefix}{block}>")

    return family


def _quoted(name: str) -> str:
    return name.replace(".", "\\.").replace("-", "\\-")


_FAMILIES: dict[str, Callable[[Forced], Block]] = {
    "hermes": _hermes,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "deepseek_v32": _invoke("function_calls", "｜DSML｜", "deepseek_xml"),
    "minimax_m2": _invoke("minimax:tool_call", "", "minimax_xml"),
    "kimi_k2": _kimi,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
}
