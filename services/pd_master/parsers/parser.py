"""The one interface of all families: text in, pieces out."""

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from services.pd_master.parsers.pieces import Output, Piece
from services.pd_master.parsers.reader import EndOfText, Reader

ToolSchemas: TypeAlias = dict[str, dict[str, Any]]
"""Function name -> JSON schema of its parameters."""
Family: TypeAlias = Callable[[Reader, Output, ToolSchemas], Generator[None, None, None]]


class FamilyParser:
    """Runs one family over one sequence's text."""

    def __init__(self, family: Family, output: Output, tools: ToolSchemas) -> None:
        self._reader = Reader()
        self._output = output
        self._run = family(self._reader, output, tools)
        self._done = False
        self._step()

    def push(self, text: str) -> None:
        """More text; pieces appear in the output."""
        if self._done:
            self._output.content(text)
            return
        self._reader.feed(text)
        self._step()

    def close(self) -> None:
        """The end: what was held back is decided."""
        self._reader.close()
        if not self._done:
            self._step()

    def _step(self) -> None:
        """Advance the family. When it is through, what is left is text; when the text ended inside of it, what was read
        of an unfinished form is text as well."""
        try:
            next(self._run)
            return
        except StopIteration:
            left = self._reader.rest()
        except EndOfText:
            left = self._reader.recorded() + self._reader.rest()
        self._done = True
        self._output.content(left)


class AnswerParser:
    """Reasoning first, tools in what follows it. One per choice."""

    def __init__(
        self, reasoning: Family | None, tools: Family | None, schemas: ToolSchemas, new_call_id: Callable[[], str]
    ) -> None:
        self._output = Output(new_call_id)
        self._tools = FamilyParser(tools, self._output, schemas) if tools else None
        self._reasoning: FamilyParser | None = None
        if reasoning is not None:
            after = _Forward(self._output, self._tools) if self._tools else self._output
            self._reasoning = FamilyParser(reasoning, after, schemas)
        self._first = self._reasoning or self._tools
        assert self._first is not None, "without a family there is nothing to parse"

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._output.num_calls

    @property
    def in_call(self) -> bool:
        """Whether the last of them is not whole yet."""
        return self._output.in_call

    def push(self, text: str) -> list[Piece]:
        """The pieces that this text completes."""
        assert self._first is not None
        self._first.push(text)
        return self._output.take()

    def close(self) -> list[Piece]:
        """The last pieces."""
        for stage in (self._reasoning, self._tools):
            if stage is not None:
                stage.close()
        self._output.close()
        return self._output.take()


class _Forward(Output):
    """The output of the reasoning stage: thoughts go to the answer, text to the tools stage."""

    def __init__(self, answer: Output, tools: FamilyParser) -> None:
        super().__init__(str)
        self._answer = answer
        self._next = tools

    def content(self, text: str) -> None:
        """Text goes on to the tools stage."""
        if text:
            self._next.push(text)

    def reasoning(self, text: str) -> None:
        """Thoughts are final."""
        self._answer.reasoning(text)

    def end_reasoning(self) -> None:
        """The answer's own concern."""
        self._answer.end_reasoning()
