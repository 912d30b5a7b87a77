"""The pieces of an answer, and where a family puts them."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Content(NamedTuple):
    """Text for the user."""

    text: str


class Reasoning(NamedTuple):
    """Text the model wrote for itself."""

    text: str


class ToolStart(NamedTuple):
    """A call begins."""

    number: int
    """Calls of one answer count from 0."""
    call_id: str
    name: str


class ToolArguments(NamedTuple):
    """More of a call's arguments: JSON text, a prefix of valid JSON at any time."""

    number: int
    """Calls of one answer count from 0."""
    text: str


Piece: TypeAlias = Content | Reasoning | ToolStart | ToolArguments


class Output:
    """Collects pieces. White space at the edge of a call or after reasoning is layout of the format and not text."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self.pieces: list[Piece] = []
        self.num_calls = 0
        self.in_call = False
        self._new_call_id = new_call_id
        self._space: str | None = ""
        """White space held back at such an edge; None inside text."""
        self._drop_space = False

    def content(self, text: str) -> None:
        """Text for the user."""
        if self._space is not None:
            text = self._space + text
            if not text or text.isspace():
                self._space = text
                return
            self._space = None
            text = text.lstrip() if self._drop_space else text
        if text:
            self.pieces.append(Content(text))

    def reasoning(self, text: str) -> None:
        """Text of the model's thoughts."""
        if text:
            self.pieces.append(Reasoning(text))

    def end_reasoning(self) -> None:
        """Text begins after the space that follows."""
        self._space = ""
        self._drop_space = True

    def start_call(self, name: str, call_id: str | None = None) -> None:
        """A call begins; its arguments follow."""
        self._space = None
        self.pieces.append(ToolStart(self.num_calls, call_id or self._new_call_id(), name))
        self.num_calls += 1
        self.in_call = True

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        if text:
            self.pieces.append(ToolArguments(self.num_calls - 1, text))

    def end_call(self) -> None:
        """The call is whole."""
        self.in_call = False
        self._space = ""
        self._drop_space = False

    def close(self) -> None:
        """The end of the output: an answer of nothing but space is text after all."""
        if self._space and not self._drop_space and self.num_calls == 0:
            self.pieces.append(Content(self._space))
        self._space = None

    def take(self) -> list[Piece]:
        """The pieces since the last time."""
        pieces, self.pieces = self.pieces, []
        return pieces
