"""How one chat's output is to be read: reasoning, tool calls, or plain text."""

from collections.abc import Callable
from typing import NamedTuple

from services.common.errors import InvalidRequestError
from services.common.request import Finish, GrammarSpec
from services.pd_master.api.openai.answers import AnsweredCall, ChatMessage
from services.pd_master.api.openai.chat_schema import ChatBody, NamedChoice
from services.pd_master.api.openai.structured import chat_grammar, forced_functions
from services.pd_master.gateway import new_call_id
from services.pd_master.grammars.tool_calls import Forced
from services.pd_master.parsers.choose import (
    HARMONY,
    Thoughts,
    ToolFamily,
    is_harmony,
    reasoning_family,
    thoughts_of,
    tool_family,
)
from services.pd_master.parsers.parser import AnswerParser, Family, ToolSchemas
from services.pd_master.parsers.pieces import Content, Piece, Reasoning, ToolArguments, ToolStart


class AnswerPlan(NamedTuple):
    """Chosen once per request; makes a parser for each choice."""

    reasoning: Family | None
    tools: Family | None
    schemas: ToolSchemas
    marks_are_special: bool
    """Special tokens have to be in the text for the parser to see them."""
    show_reasoning: bool
    one_call: bool
    grammar: GrammarSpec | None = None
    """What the output must match."""

    def parsers(self, num_choices: int) -> list["ChoiceReader"] | None:
        """A reader per choice; None when the output is plain text."""
        if self.reasoning is None and self.tools is None:
            return None
        return [ChoiceReader(self, new_call_id) for _ in range(num_choices)]


class ChoiceReader:
    """Reads one choice's text into the pieces that its client wants to see."""

    def __init__(self, plan: AnswerPlan, new_id: Callable[[], str]) -> None:
        self._plan = plan
        self._parser = AnswerParser(plan.reasoning, plan.tools, plan.schemas, new_id)
        self._is_before = True
        """Nothing but thoughts so far."""
        self._num_before = 0
        self._has_thoughts = False

    def has_calls(self, finish: Finish) -> bool:
        """Whether the output ends in calls for the client to make. A stop string within the last leaves it unfinished;
        a model's own end is taken for that of its call."""
        is_cut = self._parser.in_call and isinstance(finish.stop_reason, str)
        return self._parser.num_calls > 0 and not is_cut

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens up to the first that showed something else; none unless there were thoughts."""
        return self._num_before if self._has_thoughts else 0

    def read(self, texts: list[str], num_tokens: int, *, is_last: bool) -> list[Piece]:
        """The pieces that these tokens' texts complete, with `is_last` all that are left. `num_tokens`: what stands
        behind their texts was held back, and is of no token of its own."""
        pieces: list[Piece] = []
        for at, text in enumerate(texts):
            new = self._parser.push(text) if text else []
            pieces += new
            if self._is_before and at < num_tokens:
                self._count(new)
        if is_last:
            pieces += self._parser.close()
        return [piece for piece in pieces if self._is_wanted(piece)]

    def _count(self, new: list[Piece]) -> None:
        self._has_thoughts |= any(isinstance(piece, Reasoning) for piece in new)
        self._is_before = all(isinstance(piece, Reasoning) for piece in new)
        self._num_before += self._is_before

    def _is_wanted(self, piece: Piece) -> bool:
        if isinstance(piece, Reasoning):
            return self._plan.show_reasoning
        if isinstance(piece, ToolStart | ToolArguments):
            return piece.number == 0 or not self._plan.one_call
        return True


def plan_answer(
    body: ChatBody, template_source: str, prompt: str, special_id: Callable[[str], int | None]
) -> AnswerPlan:
    """Raises InvalidRequestError when tools are offered to a model whose template knows none, and when the output
    cannot be held to what is asked for."""
    tools = _tools(body, template_source)
    reasoning = None if tools is HARMONY else reasoning_family(template_source, prompt)
    only_one = isinstance(body.tool_choice, NamedChoice) or body.parallel_tool_calls is False
    forced = Forced(forced_functions(body), only_one, template_source, special_id)
    thoughts = Thoughts.NONE if tools is HARMONY else thoughts_of(template_source, prompt)
    grammar = chat_grammar(body, thoughts, tools.name if tools else None, forced)
    return AnswerPlan(
        reasoning=reasoning if body.separate_reasoning is not False else None,
        tools=tools.parse if tools else None,
        schemas={tool.function.name: tool.function.parameters or {} for tool in body.tools or ()},
        marks_are_special=tools is not None and tools.marks_are_special,
        show_reasoning=body.include_reasoning is not False,
        one_call=only_one,
        grammar=grammar,
    )


def num_reasoning_tokens(readers: list[ChoiceReader] | None) -> int:
    """Over all choices."""
    return sum(reader.num_reasoning_tokens for reader in readers or ())


def message_of(pieces: list[Piece]) -> ChatMessage:
    """The `message` of an answer that is not streamed."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    calls: list[AnsweredCall] = []
    for piece in pieces:
        if isinstance(piece, ToolStart):
            calls.append({"id": piece.call_id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
        elif isinstance(piece, ToolArguments):
            calls[-1]["function"]["arguments"] += piece.text
    message: ChatMessage = {"role": "assistant", "content": content or None if calls else content, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _tools(body: ChatBody, template_source: str) -> ToolFamily | None:
    if is_harmony(template_source):
        return HARMONY
    if not body.tools or body.tool_choice == "none":
        return None
    family = tool_family(template_source)
    if family is None:
        raise InvalidRequestError("tools: this model's chat template knows no tools", param="tools")
    return family
