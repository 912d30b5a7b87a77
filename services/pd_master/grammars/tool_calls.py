"""`tool_choice` that forces a call: the form in which each family of models writes calls, as a structural tag.

What these forms allow, the parser of the same family reads (`services.pd_master.parsers`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from services.pd_master.parsers import deepseek, glm, hermes, kimi, mistral, qwen3_coder

Format: TypeAlias = dict[str, Any]


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


def forced_calls(family: str, forced: Forced) -> Format | None:
    """At least one call; None for a family whose calls cannot be forced."""
    make = _FAMILIES.get(family)
    return None if make is None else make(forced)


def sequence(*elements: Format) -> Format:
    """One after the other."""
    return {"type": "sequence", "elements": list(elements)}


def text(value: str) -> Format:
    """Exactly this."""
    return {"type": "const_string", "value": value}


def _mark(forced: Forced, mark: str) -> Format:
    token = forced.special_id(mark)
    return text(mark) if token is None else {"type": "token", "token": token}


def _schema(function: Function, style: str = "json") -> Format:
    return {"type": "json_schema", "json_schema": function.parameters, "style": style}


def _either(forms: list[Format]) -> Format:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def _repeated(call: Format, forced: Forced, separator: str = "") -> Format:
    if forced.only_one:
        return call
    return sequence(call, {"type": "star", "content": sequence(text(separator), call) if separator else call})


def _json_call(arguments: str) -> Callable[[Function], Format]:
    def call(function: Function) -> Format:
        return sequence(text(f'{{"name": "{function.name}", "{arguments}": '), _schema(function), text("}"))

    return call


def _any_call(forced: Forced, call: Callable[[Function], Format]) -> Format:
    return _either([call(function) for function in forced.functions])


def _hermes(forced: Forced) -> Format:
    call = _any_call(forced, _json_call("arguments"))
    whole = sequence(_mark(forced, hermes.START), text("\n"), call, text("\n"), _mark(forced, hermes.END))
    return _repeated(whole, forced, "\n")


def _llama3(forced: Forced) -> Format:
    return _repeated(_any_call(forced, _json_call("parameters")), forced, "; ")


def _mistral(forced: Forced) -> Format:
    start = _mark(forced, mistral.START)
    if mistral.ARGUMENTS not in forced.template:
        calls = _repeated(_any_call(forced, _json_call("arguments")), forced, ", ")
        return sequence(start, text("["), calls, text("]"))

    def call(function: Function) -> Format:
        return sequence(start, text(function.name), _mark(forced, mistral.ARGUMENTS), _schema(function))

    return _repeated(_any_call(forced, call), forced)


def _deepseek(forced: Forced) -> Format:
    separator, end = _mark(forced, deepseek.SEPARATOR), _mark(forced, deepseek.CALL_END)
    fenced = "```json" in forced.template

    def call(function: Function) -> Format:
        start = _mark(forced, deepseek.CALL)
        if not fenced:
            return sequence(start, text(function.name), separator, _schema(function), end)
        head = text(f"{function.name}\n```json\n")
        return sequence(start, text("function"), separator, head, _schema(function), text("\n```"), end)

    calls = _repeated(_any_call(forced, call), forced, "\n" if fenced else "")
    return sequence(_mark(forced, deepseek.CALLS), calls, _mark(forced, deepseek.CALLS_END))


def _kimi(forced: Forced) -> Format:
    def call(function: Function) -> Format:
        name = {"type": "regex", "pattern": f"functions\\.{_quoted(function.name)}:\\d{{1,3}}"}
        start, arguments = _mark(forced, kimi.CALL), _mark(forced, kimi.ARGUMENTS)
        return sequence(start, name, arguments, _schema(function), _mark(forced, kimi.CALL_END))

    calls = _repeated(_any_call(forced, call), forced)
    return sequence(_mark(forced, kimi.SECTION), calls, _mark(forced, kimi.SECTION_END))


def _qwen3_coder(forced: Forced) -> Format:
    def call(function: Function) -> Format:
        head = text(f"\n{qwen3_coder.FUNCTION}{function.name}>\n")
        tail = text(f"\n{qwen3_coder.FUNCTION_END}\n")
        start, end = _mark(forced, qwen3_coder.START), _mark(forced, qwen3_coder.END)
        return sequence(start, head, _schema(function, "qwen_xml"), tail, end)

    return _repeated(_any_call(forced, call), forced, "\n")


def _glm(forced: Forced) -> Format:
    def call(function: Function) -> Format:
        start, end = _mark(forced, glm.START), _mark(forced, glm.END)
        return sequence(start, text(f"{function.name}\n"), _schema(function, "glm_xml"), text("\n"), end)

    return _repeated(_any_call(forced, call), forced, "\n")


def _invoke(block: str, prefix: str, style: str) -> Callable[[Forced], Format]:
    def family(forced: Forced) -> Format:
        def call(function: Function) -> Format:
            head = text(f'<{prefix}invoke name="{function.name}">\n')
            return sequence(head, _schema(function, style), text(f"\n</{prefix}invoke>\n"))

        start, end = text(f"<{prefix}{block}>\n"), text(f"</{prefix}{block}>")
        return sequence(start, _repeated(_any_call(forced, call), forced), end)

    return family


def _quoted(name: str) -> str:
    return name.replace(".", "\\.").replace("-", "\\-")


_FAMILIES: dict[str, Callable[[Forced], Format]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
    "deepseek": _deepseek,
    "deepseek_v32": _invoke("function_calls", "｜DSML｜", "deepseek_xml"),
    "minimax_m2": _invoke("minimax:tool_call", "", "minimax_xml"),
    "kimi_k2": _kimi,
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
}
