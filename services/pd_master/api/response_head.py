"""Status line and headers of an answer as bytes."""

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]

_PHRASES = {int(status): status.phrase for status in HTTPStatus} | {499: "Request Ended"}
"""What the field writes in logs for clients that are gone is also the answer to one that is not, where its request was
ended by others."""
_STATUS_LINES = {status: f"HTTP/1.1 {status} {phrase}\r\n".encode() for status, phrase in _PHRASES.items()}


class _Date:
    """The date header of this second, made once."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = f"date: {formatdate(second, usegmt=True)}\r\n".encode()
        return self._line


_date = _Date()


def response_head(status: int, headers: Headers, *, keep_alive: bool) -> bytes:
    """All up to the empty line. No name or value may hold a line's end."""
    parts = [_STATUS_LINES[status], _date.line()]
    for name, value in headers:
        assert b"\n" not in value, "it would begin another header"
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    return b"".join(parts)
