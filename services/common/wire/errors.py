"""The error of a message that cannot be read, and the two checks that raise it."""

import enum
from collections.abc import Mapping
from typing import TypeVar

from services.common.errors import InvalidRequestError

E = TypeVar("E", bound=enum.Enum)


class WireError(InvalidRequestError):
    """A protobuf message of a session without meaning: an unset kind, an unknown enum value, a missing part."""

    code = "bad_message"


def require(present: bool, field: str) -> None:
    """Raise WireError unless the field is set."""
    if not present:
        raise WireError(f"{field} is not set", param=field)


def enum_from_proto(table: Mapping[int, E], value: int, field: str) -> E:
    """Return the domain value of a protobuf enum number; WireError when it is unset or unknown."""
    found = table.get(value)
    if found is None:
        raise WireError(f"{field} has no meaning: {value}", param=field)
    return found
