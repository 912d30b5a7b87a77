"""Request bodies become typed values; whatever does not fit becomes a 400 that names the field."""

import re
from typing import Generic, TypeVar

import msgspec

from services.common.errors import InvalidRequestError

T = TypeVar("T")

_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


class BodyParser(Generic[T]):
    """Decodes one type of body, strictly: unknown fields and other types than declared are errors."""

    def __init__(self, body_type: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(body_type)

    def __call__(self, body: bytes) -> T:
        """Raises InvalidRequestError; `param` is the path of the field at fault, such as `messages[0].role`."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _field_error(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the body is not valid JSON: {error}") from error
        except RecursionError as error:
            raise InvalidRequestError("the body is nested too deeply") from error


def _field_error(message: str) -> InvalidRequestError:
    """msgspec says what is wrong and, unless it is the body as a whole, where."""
    path = _PATH.search(message)
    where = path[1].removesuffix("[...]") if path else ""
    what = message[: path.start()] if path else message
    unknown, missing = _UNKNOWN.search(what), _MISSING.search(what)
    if named := unknown or missing:
        where = f"{where}.{named[1]}" if where else named[1]
        what = "unknown field" if unknown else "this field is required"
    return InvalidRequestError(f"{where}: {what}" if where else what, param=where or None)
