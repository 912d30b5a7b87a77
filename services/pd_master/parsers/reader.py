"""Text that arrives in parts, read as if it were all there: a family's generator waits where it lacks characters.

`yield from reader....` suspends until more text or the end comes. A mark is found however it is cut into parts, since
an end of the text that may become a mark is not passed on before that is decided.
"""

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Wait: TypeAlias = Generator[None, None, T]
Emit: TypeAlias = Callable[[str], None]


class EndOfText(Exception):  # noqa: N818 - it ends a generator and is no failure
    """The output ended where a family wanted more."""


class Reader:
    """The text of one sequence, fed by its parser and read by its family."""

    def __init__(self) -> None:
        self._buffer = ""
        self._closed = False
        self._record: list[str] | None = None

    def feed(self, text: str) -> None:
        """More text."""
        self._buffer += text

    def close(self) -> None:
        """No more text will come."""
        self._closed = True

    def record(self, before: str = "") -> None:
        """Keep what is read from here on, to give it back as text when it turns out to be none of the format.

        `before` was read already and belongs to it.
        """
        self._record = [before]

    def recorded(self) -> str:
        """What was read since `record`; the recording ends."""
        text = "".join(self._record or [])
        self._record = None
        return text

    def pass_until(self, marks: tuple[str, ...], emit: Emit) -> Wait[str]:
        """Pass text on until one of the marks, which is consumed and returned. EndOfText when none comes."""
        while True:
            at, mark = first_mark(self._buffer, marks)
            if mark:
                self._pass(at, emit)
                self._consume(len(mark))
                return mark
            keep = 0 if self._closed else held_length(self._buffer, marks)
            self._pass(len(self._buffer) - keep, emit)
            yield from self._more()

    def read_until(self, *marks: str) -> Wait[tuple[str, str]]:
        """The text before the first of the marks, and that mark; both are consumed. EndOfText when none comes."""
        parts: list[str] = []
        mark = yield from self.pass_until(marks, parts.append)
        return "".join(parts), mark

    def peek(self, num_chars: int) -> Wait[str]:
        """The next characters without taking them; fewer only at the end."""
        while len(self._buffer) < num_chars and not self._closed:
            yield
        return self._buffer[:num_chars]

    def take(self, num_chars: int) -> Wait[str]:
        """The next characters. EndOfText when there are fewer."""
        while len(self._buffer) < num_chars:
            yield from self._more()
        return self._consume(num_chars)

    def skip_space(self) -> Wait[str]:
        """Skip white space and return the character after it, which stays. EndOfText when there is none."""
        while True:
            left = len(self._buffer) - len(self._buffer.lstrip())
            self._consume(left)
            if self._buffer:
                return self._buffer[0]
            yield from self._more()

    def found(self, mark: str) -> Wait[bool]:
        """Whether the text goes on with a mark, which is consumed then."""
        while len(self._buffer) < len(mark) and mark.startswith(self._buffer) and not self._closed:
            yield
        if not self._buffer.startswith(mark):
            return False
        self._consume(len(mark))
        return True

    def available(self) -> Wait[str]:
        """All there is, at least a character, without taking it. EndOfText at the end."""
        while not self._buffer:
            yield from self._more()
        return self._buffer

    def consume(self, num_chars: int) -> str:
        """Take characters that `available` or `peek` has shown."""
        return self._consume(num_chars)

    def unread(self, text: str) -> None:
        """Put back what was just consumed."""
        self._buffer = text + self._buffer
        if self._record:
            self._record[-1] = self._record[-1].removesuffix(text)

    def rest(self) -> str:
        """Take all that is left."""
        return self._consume(len(self._buffer))

    def _more(self) -> Wait[None]:
        if self._closed:
            raise EndOfText
        yield

    def _pass(self, num_chars: int, emit: Emit) -> None:
        if num_chars:
            emit(self._consume(num_chars))

    def _consume(self, num_chars: int) -> str:
        text, self._buffer = self._buffer[:num_chars], self._buffer[num_chars:]
        if self._record is not None:
            self._record.append(text)
        return text


def first_mark(text: str, marks: tuple[str, ...]) -> tuple[int, str]:
    """Where the first of the marks begins, the longest one there, and that mark; an empty mark when there is none."""
    best = (len(text), "")
    for mark in marks:
        at = text.find(mark)
        if at >= 0 and (at, -len(mark)) < (best[0], -len(best[1])):
            best = (at, mark)
    return best


def held_length(text: str, marks: tuple[str, ...]) -> int:
    """Length of the longest end of the text that is the beginning of a mark."""
    longest = max(map(len, marks)) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(mark.startswith(end) for mark in marks):
            return length
    return 0
