"""Errors in the shapes of the APIs. The OpenAI shape also serves the native routes and everything without an API."""

import math
from collections.abc import Callable
from typing import TypeAlias, TypedDict

import msgspec

from services.common.errors import SluiceError

ErrorShape: TypeAlias = Callable[[SluiceError], bytes]


class ErrorBody(TypedDict):
    """What went wrong: `param` is the path of the field at fault, `code` a word for programs."""

    message: str
    type: str
    param: str | None
    code: str


class Error(TypedDict):
    """Any answer with a status from 400 on, but for Anthropic's paths."""

    error: ErrorBody


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def openai_error(error: SluiceError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`."""
    status = error.http_status
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body: Error = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
    return msgspec.json.encode(body)


def retry_after(error: SluiceError) -> list[tuple[bytes, bytes]]:
    """The Retry-After header of an overload: whole seconds, at least one."""
    if error.http_status not in (429, 503):
        return []
    seconds = max(1, math.ceil(error.retry_after_s or 1.0))
    return [(b"retry-after", str(seconds).encode())]
