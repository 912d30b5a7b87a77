"""Thoughts before an answer whose form is given: they are free, the answer after them is not."""

import json
from typing import Any

from services.common.errors import InvalidRequestError
from services.common.request import GrammarKind, GrammarSpec
from services.pd_master.grammars import harmony
from services.pd_master.grammars.forms import ANY_TEXT, Format, SpecialId, sequence
from services.pd_master.grammars.source import tag_grammar
from services.pd_master.parsers.choose import Thoughts
from services.pd_master.parsers.think import END, START


def after_thoughts(form: Format, thoughts: Thoughts) -> Format:
    """`form` behind the thoughts that the model may have, or has begun in its prompt."""
    if thoughts is Thoughts.NONE:
        return form
    begin = "" if thoughts is Thoughts.BEGUN else START
    thinking: dict[str, Any] = {"type": "tag", "begin": begin, "content": ANY_TEXT, "end": END}
    block = sequence(thinking, {"type": "regex", "pattern": "\\s{0,2}"})
    return sequence(block if thoughts is Thoughts.BEGUN else {"type": "optional", "content": block}, form)


def grammar_after_thoughts(spec: GrammarSpec, thoughts: Thoughts) -> GrammarSpec:
    """The same for a whole grammar. Structural tags say themselves what may stand where."""
    if thoughts is Thoughts.NONE or spec.kind is GrammarKind.STRUCTURAL_TAG:
        return spec
    return tag_grammar(after_thoughts(form_of(spec), thoughts), spec.field)


def grammar_on_channels(spec: GrammarSpec, special_id: SpecialId) -> GrammarSpec:
    """The same for a model with harmony channels."""
    if spec.kind is GrammarKind.STRUCTURAL_TAG:
        return spec
    return tag_grammar(harmony.answer(form_of(spec), special_id), spec.field)


def form_of(spec: GrammarSpec) -> Format:
    """A grammar as a part of a structural tag. Raises InvalidRequestError for one that is a structural tag itself."""
    match spec.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"type": "json_schema", "json_schema": json.loads(spec.source)}
        case GrammarKind.REGEX:
            return {"type": "regex", "pattern": spec.source}
        case GrammarKind.EBNF:
            return {"type": "grammar", "grammar": spec.source}
        case GrammarKind.STRUCTURAL_TAG:
            raise InvalidRequestError("a structural tag is whole by itself", param=spec.field)
