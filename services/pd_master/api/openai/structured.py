"""The fields that say what form an output has, each as one grammar; two of them at once are a contradiction."""

from collections.abc import Callable

from services.common.errors import InvalidRequestError
from services.common.request import GrammarSpec
from services.pd_master.api.openai.chat_schema import ChatBody, NamedChoice, Tool
from services.pd_master.api.openai.fields import GenerationFields, StructuredOutputs
from services.pd_master.grammars import source
from services.pd_master.grammars.forms import Format
from services.pd_master.grammars.json_schema import checked_schema
from services.pd_master.grammars.thoughts import after_thoughts, form_of, grammar_after_thoughts, grammar_on_channels
from services.pd_master.grammars.tool_calls import Forced, Function, answer_or_calls, forced_calls, free_calls
from services.pd_master.parsers.choose import HARMONY, Thoughts

_GUIDED: dict[str, Callable[[object, str], GrammarSpec]] = {
    "guided_json": source.schema_grammar,
    "guided_regex": source.regex_grammar,
    "guided_choice": source.choice_grammar,
    "guided_grammar": source.ebnf_grammar,
}
_STRUCTURED: dict[str, Callable[[object, str], GrammarSpec]] = {
    "json": source.schema_grammar,
    "regex": source.regex_grammar,
    "choice": source.choice_grammar,
    "grammar": source.ebnf_grammar,
}
_CLASHES = ("min_tokens", "ignore_eos", "allowed_token_ids", "bad_words")


def answer_grammar(fields: GenerationFields) -> GrammarSpec | None:
    """What the answer's text must match. Raises InvalidRequestError naming the field at fault."""
    found = [make(getattr(fields, name), name) for name, make in _GUIDED.items() if getattr(fields, name) is not None]
    if fields.structured_outputs is not None:
        found.append(_structured(fields.structured_outputs))
    if isinstance(fields, ChatBody) and (form := _response_format(fields)) is not None:
        found.append(form)
    if len(found) > 1:
        raise InvalidRequestError(f"{found[1].field}: {found[0].field} is given too", param=found[1].field)
    for name in _CLASHES if found else ():
        if getattr(fields, name):
            raise InvalidRequestError(f"{name}: cannot be combined with {found[0].field}", param=name)
    return found[0] if found else None


def chat_grammar(body: ChatBody, thoughts: Thoughts, family: str | None, forced: Forced) -> GrammarSpec | None:
    """What a chat's output must match, thoughts and calls included. `family`: in which the model writes calls; `forced`
    has no functions where none has to be called."""
    answer = answer_grammar(body)
    if forced.functions:
        if answer is not None and not _leaves_room_for_calls(answer):
            raise InvalidRequestError(f"tool_choice: {answer.field} asks for text", param="tool_choice")
        form = None if family is None else forced_calls(family, forced)
        return _calls_grammar(body, form, thoughts, "tool_choice", "calls of this model cannot be forced")
    free = _free_functions(body) if family is not None else []
    if answer is not None:
        return _answer_grammar(body, answer, thoughts, family, forced._replace(functions=free))
    if family is None or not any(tool.function.strict for tool in body.tools or ()) or not free:
        return None
    form = free_calls(family, forced._replace(functions=free))
    return _calls_grammar(body, form, thoughts, "tools", "strict: no mark of this model begins its calls")


def _answer_grammar(
    body: ChatBody, answer: GrammarSpec, thoughts: Thoughts, family: str | None, free: Forced
) -> GrammarSpec:
    """`free`: what may be called."""
    if family is not None and free.functions and _leaves_room_for_calls(answer):
        form = answer_or_calls(form_of(answer), family, free)
        return _calls_grammar(body, form, thoughts, answer.field, "calls of this model have no form to choose from")
    if family == HARMONY.name:
        return grammar_on_channels(answer, free.special_id)
    return grammar_after_thoughts(answer, thoughts)


def _leaves_room_for_calls(answer: GrammarSpec) -> bool:
    """OpenAI's `response_format` is of answers, in place of which there may be calls, and agents send it with each
    request. vLLM's fields are of the output as a whole."""
    return answer.field.startswith("response_format")


def _calls_grammar(
    body: ChatBody, form: Format | None, thoughts: Thoughts, field: str, problem: str
) -> GrammarSpec:  # fmt: skip
    for name in _CLASHES:
        if getattr(body, name):
            what = "tool_choice" if field == "tool_choice" else "strict tools"
            raise InvalidRequestError(f"{name}: cannot be combined with {what}", param=name)
    if form is None:
        raise InvalidRequestError(f"{field}: {problem}", param=field)
    return source.tag_grammar(after_thoughts(form, thoughts), field)


def _free_functions(body: ChatBody) -> list[Function]:
    """All that may be called but need not; of those that are not strict any arguments are taken."""
    tools = body.tools or [] if body.tool_choice in (None, "auto") else []
    return [
        _function(tool, at) if tool.function.strict else Function(tool.function.name, source.ANY_OBJECT)
        for at, tool in enumerate(tools)
    ]


def forced_functions(body: ChatBody) -> list[Function]:
    """What `tool_choice` leaves to call; none where it forces no call. Raises InvalidRequestError."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return []
    tools = body.tools or []
    if not tools:
        raise InvalidRequestError("tool_choice: needs tools", param="tool_choice")
    if isinstance(choice, NamedChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
        if not tools:
            problem = f"no tool is named {choice.function.name!r}"
            raise InvalidRequestError(f"tool_choice.function.name: {problem}", param="tool_choice.function.name")
    return [_function(tool, at) for at, tool in enumerate(tools)]


def _function(tool: Tool, at: int) -> Function:
    schema = tool.function.parameters or source.ANY_OBJECT
    return Function(tool.function.name, checked_schema(schema, f"tools[{at}].function.parameters"))


def _response_format(body: ChatBody) -> GrammarSpec | None:
    form = body.response_format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return source.schema_grammar(source.ANY_OBJECT, "response_format")
    named = form.json_schema
    if named is None:
        raise InvalidRequestError("response_format.json_schema: this field is required", param="response_format")
    schema = source.ANY_OBJECT if named.schema is None else named.schema
    return source.schema_grammar(schema, "response_format.json_schema.schema")


def _structured(outputs: StructuredOutputs) -> GrammarSpec:
    given = [
        name for name in (*_STRUCTURED, "json_object", "structural_tag") if getattr(outputs, name) not in (None, False)
    ]
    if len(given) != 1:
        problem = "one of json, regex, choice, grammar, json_object and structural_tag must be given"
        raise InvalidRequestError(f"structured_outputs: {problem}", param="structured_outputs")
    name, field = given[0], f"structured_outputs.{given[0]}"
    if name == "json_object":
        return source.schema_grammar(source.ANY_OBJECT, field)
    if name == "structural_tag":
        return source.tag_text_grammar(outputs.structural_tag, field)
    return _STRUCTURED[name](getattr(outputs, name), field)
