"""What a client got, whatever the API: comparable between a quiet and a troubled cluster."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]
TRANSPORT = 0
"""Status of an answer that the connection broke off."""


@dataclass(slots=True)
class Call:
    """One tool call; `arguments` is JSON text."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One choice as it was delivered, in order."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    """Where the API shows token ids."""
    logprobs: list[float] = field(default_factory=list)
    thoughts: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None

    def end(self, reason: str, stop_reason: str | int | None = None) -> None:
        """Its one finish."""
        assert self.finish is None, f"a second finish: {self.finish}, then {reason}"
        self.finish, self.stop_reason = reason, stop_reason


class Usage(NamedTuple):
    """Tokens as the answer counts them."""

    prompt: int
    output: int


@dataclass(slots=True)
class Answer:
    """All that came of one request."""

    status: int = 200
    error: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Usage | None = None
    prompt_logprobs: list[float] = field(default_factory=list)
    num_events: int = 0
    """Of a stream whose events are numbered."""
    num_blocks: int = 0
    """Of a stream of content blocks, those begun."""
    is_whole: bool = False
    """The end mark came."""

    def choice(self, index: int) -> Choice:
        """That choice; nothing is added to one that has ended."""
        found = self.choices.setdefault(index, Choice())
        assert found.finish is None, f"choice {index} goes on behind its finish"
        return found

    @property
    def ended_well(self) -> bool:
        """Whether it is a whole answer, or the refusal of a bad request."""
        return self.is_whole and not self.error

    def check_shape(self) -> None:
        """What holds for every whole answer on its own."""
        assert sorted(self.choices) == list(range(len(self.choices))), f"choices {sorted(self.choices)}"
        for at, choice in self.choices.items():
            assert choice.finish is not None, f"choice {at} has no finish"
        if self.usage is not None and all(choice.ids for choice in self.choices.values()):
            counted = sum(len(choice.ids) for choice in self.choices.values())
            assert self.usage.output == counted, f"usage says {self.usage.output} tokens, {counted} came"
