"""Which families a model writes in, read off its chat template: the marks it teaches are the marks it will use."""

from enum import Enum
from typing import NamedTuple

from services.pd_master.parsers.deepseek import CALLS, deepseek
from services.pd_master.parsers.glm import KEY, glm
from services.pd_master.parsers.harmony import CHANNEL, harmony
from services.pd_master.parsers.hermes import START, hermes
from services.pd_master.parsers.invoke import deepseek_v32, minimax_m2
from services.pd_master.parsers.kimi import SECTION, kimi
from services.pd_master.parsers.llama3 import TAG, llama3
from services.pd_master.parsers.mistral import START as MISTRAL_START
from services.pd_master.parsers.mistral import mistral
from services.pd_master.parsers.parser import Family
from services.pd_master.parsers.qwen3_coder import FUNCTION, qwen3_coder
from services.pd_master.parsers.think import END, think
from services.pd_master.parsers.think import START as THINK


class Thoughts(Enum):
    """Whether an output begins with thoughts between marks."""

    NONE = "none"
    POSSIBLE = "possible"
    """The model may open them."""
    BEGUN = "begun"
    """The prompt has opened them."""


class ToolFamily(NamedTuple):
    """A family of tool calls."""

    name: str
    parse: Family
    marks_are_special: bool = False
    """Its marks are special tokens, which have to be in the text for the parser to see them."""


# Template mark -> family. The first that a template contains wins, so the more particular ones stand first.
_BY_MARK = (
    ("｜DSML｜", ToolFamily("deepseek_v32", deepseek_v32)),
    ("<minimax:tool_call>", ToolFamily("minimax_m2", minimax_m2)),
    (CALLS, ToolFamily("deepseek", deepseek)),
    (SECTION, ToolFamily("kimi_k2", kimi, marks_are_special=True)),
    (KEY, ToolFamily("glm", glm)),
    (FUNCTION, ToolFamily("qwen3_coder", qwen3_coder)),
    (START, ToolFamily("hermes", hermes)),
    (MISTRAL_START, ToolFamily("mistral", mistral, marks_are_special=True)),
    (TAG, ToolFamily("llama3", llama3)),
    ('"parameters": dictionary of argument name', ToolFamily("llama3", llama3)),
)
HARMONY = ToolFamily("harmony", harmony, marks_are_special=True)
FAMILIES = {family.name: family for _, family in _BY_MARK} | {HARMONY.name: HARMONY}


def tool_family(template: str) -> ToolFamily | None:
    """The family whose marks a template contains; None when it knows no tools."""
    if is_harmony(template):
        return HARMONY
    for mark, family in _BY_MARK:
        if mark in template:
            return family
    return None


def is_harmony(template: str) -> bool:
    """Channels carry reasoning and calls alike, so this family is on for every request."""
    return CHANNEL in template


def reasoning_family(template: str, prompt: str) -> Family | None:
    """Thoughts between marks, when the template knows them. Where the prompt has opened them the output begins inside;
    where it has closed them (thinking switched off) there are none."""
    return None if not _thinks(template) else think(inside=thoughts_of(template, prompt) is Thoughts.BEGUN)


def thoughts_of(template: str, prompt: str) -> Thoughts:
    """What the prompt's end leaves open."""
    if not _thinks(template):
        return Thoughts.NONE
    opened, closed = prompt.rfind(THINK), prompt.rfind(END)
    if opened > closed and not prompt[opened + len(THINK) :].strip():
        return Thoughts.BEGUN
    is_over = closed > opened and not prompt[closed + len(END) :].strip()
    return Thoughts.NONE if is_over else Thoughts.POSSIBLE


def _thinks(template: str) -> bool:
    return END in template or THINK in template
