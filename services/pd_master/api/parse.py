"""Request bodies become typed values; whatever does not fit becomes a 400 that names the field."""

import re
from typing import Generic, TypeVar

import msgspec

from services.common.errors import InvalidRequestError
from services.pd_master.api.body_types import allowed_at, nearest_field

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MAX_SHOWN = 100
"""Characters of a client's own value in a message."""
_VALUE = re.compile(r"Invalid (?:enum )?value (.*)", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


class BodyParser(Generic[T]):
    """Decodes one type of body, strictly: unknown fields and other types than declared are errors."""

    def __init__(self, body_type: type[T]) -> None:
        self._type = body_type
        self._decoder = msgspec.json.Decoder(body_type)

    def __call__(self, body: bytes) -> T:
        """Raises InvalidRequestError; `param` is the path of the field at fault, such as `messages[0].role`."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _field_error(str(error), self._type) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not body.strip():
                raise InvalidRequestError("the body is empty; it takes a JSON object") from error
            raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
        except RecursionError as error:
            raise InvalidRequestError("the body is nested too deeply") from error


def _field_error(message: str, body_type: type) -> InvalidRequestError:
    """msgspec says what is wrong and, unless it is the body as a whole, where."""
    path = _PATH.search(message)
    where = path[1].removesuffix("[...]") if path else ""
    what = message[: path.start()] if path else message
    unknown, missing, value = _UNKNOWN.search(what), _MISSING.search(what), _VALUE.fullmatch(what)
    if unknown:
        meant = nearest_field(body_type, where, unknown[1])
        what = f"unknown field; did you mean {meant}?" if meant else "unknown field"
    elif missing:
        what = "this field is required"
    elif value and (allowed := allowed_at(body_type, where)):
        what = f"{value[1][:_MAX_SHOWN]} is not allowed; it takes one of {', '.join(allowed)}"
    if named := unknown or missing:
        where = f"{where}.{named[1]}" if where else named[1]
    return InvalidRequestError(f"{where or 'the body'}: {what}", param=where or None)
