"""`--help` for people: options by group, each with its meaning, default and environment variable."""

import dataclasses
import itertools
import shutil
import textwrap

from services.common.options import Options, Spec, specs

_INDENT = " " * 6
_GROUP_ORDER = (
    "model",
    "processes",
    "network",
    "device",
    "scheduling",
    "limits",
    "KV transfer",
    "TLS between pods",
    "times",
    "logs",
)


def render_help(cls: type[Options], command: str, purpose: str) -> str:
    """Return the whole help text of a command whose options are the fields of `cls`."""
    width = min(shutil.get_terminal_size().columns, 110)
    lines = [f"usage: {command} [OPTIONS]", "", *textwrap.wrap(purpose, width)]
    found = specs(cls)
    groups = sorted({spec.group for spec in found}, key=_GROUP_ORDER.index)
    for group in groups:
        of_group = [_render(spec, width) for spec in found if spec.group == group]
        lines += ["", f"{group}:", *itertools.chain.from_iterable(of_group)]
    footer = ["", *textwrap.wrap(_footer(found[0]), width)] if found else []
    return "\n".join([*lines, *footer])


def _footer(example: Spec) -> str:
    return (
        f"Every option can also be set by an environment variable, shown in brackets: {example.flag} is {example.env}. "
        "A flag wins over a variable. Unknown options and unknown SLUICE_ variables are errors."
    )


def _render(spec: Spec, width: int) -> list[str]:
    head = f"  {spec.flag}" if spec.type is not bool else f"  {spec.flag}, --no-{spec.flag[2:]}"
    if spec.type is not bool:
        head += f" {_value_name(spec)}"
    body = f"{spec.help} ({_default(spec)}) [{spec.env}]"
    return [head, *textwrap.wrap(body, width, initial_indent=_INDENT, subsequent_indent=_INDENT)]


def _value_name(spec: Spec) -> str:
    if spec.choices:
        return "|".join(spec.choices)
    return spec.metavar or {int: "N", float: "X", tuple: "A,B,..."}.get(spec.type, "TEXT")


def _default(spec: Spec) -> str:
    if spec.default is dataclasses.MISSING:
        return "required"
    if spec.default in (None, "", ()):
        return "default: none"
    if spec.type is bool:
        return f"default: {'on' if spec.default else 'off'}"
    return f"default: {spec.default:g}" if spec.type is float else f"default: {spec.default}"
