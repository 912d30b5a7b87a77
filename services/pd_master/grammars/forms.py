"""Pieces of structural tags' formats, which XGrammar compiles."""

from collections.abc import Callable
from typing import Any, TypeAlias

Format: TypeAlias = dict[str, Any]
SpecialId: TypeAlias = Callable[[str], int | None]
"""The id of a mark that is a special token; no text stands for it then."""
ANY_TEXT: Format = {"type": "any_text"}


def sequence(*elements: Format) -> Format:
    """One after the other."""
    return {"type": "sequence", "elements": list(elements)}


def either(forms: list[Format]) -> Format:
    """One of them."""
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def text(value: str) -> Format:
    """Exactly this."""
    return {"type": "const_string", "value": value}


def mark(special_id: SpecialId, value: str) -> Format:
    """A mark, as the token or the text that it is."""
    token = special_id(value)
    return text(value) if token is None else {"type": "token", "token": token}
