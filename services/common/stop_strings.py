"""Finds stop strings in text that arrives piece by piece, and holds back what may yet become one.

A pure function of the text: however it is cut into pieces, the same characters come out and the same string matches.
"""

from typing import NamedTuple


class Found(NamedTuple):
    """What one more piece of text makes visible; after `stop`, the string that matched, nothing more is."""

    visible: str
    stop: str | None


class StopStrings:
    """The stop strings of one sequence and the text held back. The match that ends first wins, then the longest."""

    def __init__(self, strings: tuple[str, ...], *, include: bool = False) -> None:
        self._strings = tuple(string for string in strings if string)
        self._include = include
        self._held = ""

    def __bool__(self) -> bool:
        return bool(self._strings)

    def push(self, piece: str, *, armed: bool = True) -> Found:
        """Take the next characters. Unarmed (`min_new_tokens`), a string that ends in them does not count."""
        buffer = self._held + piece
        match = self._first_match(buffer) if armed and piece else None
        if match is not None:
            start, end = match
            self._held = ""
            return Found(buffer[: end if self._include else start], buffer[start:end])
        keep = len(buffer) - self._num_held(buffer)
        self._held = buffer[keep:]
        return Found(buffer[:keep], None)

    def close(self) -> str:
        """The text still held back: the sequence ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, int] | None:
        """(start, end) of the match that ends first among those that end in the new text."""
        old = len(self._held)
        best: tuple[int, int] | None = None
        for string in self._strings:
            start = buffer.find(string, max(0, old - len(string) + 1))
            if start < 0:
                continue
            end = start + len(string)
            if best is None or (end, start) < (best[1], best[0]):
                best = (start, end)
        return best

    def _num_held(self, buffer: str) -> int:
        """Length of the longest end of `buffer` that is the beginning of a stop string."""
        longest = 0
        for string in self._strings:
            start = buffer.find(string[0], max(0, len(buffer) - len(string) + 1))
            while start >= 0 and len(buffer) - start > longest:
                if string.startswith(buffer[start:]):
                    longest = len(buffer) - start
                start = buffer.find(string[0], start + 1)
        return longest
