"""Random JSON schemas, small enough that a model which says anything at all comes to an end."""

import random
from typing import Any

Schema = dict[str, Any]


def random_schema(seed: int) -> Schema:
    """An object at the top, as clients ask for; equal seeds give equal schemas."""
    return _object(random.Random(seed), depth=2)


def _any(chance: random.Random, depth: int) -> Schema:
    kinds = [_string, _integer, _boolean, _enum] + ([_object, _array, _either] if depth else [])
    return chance.choice(kinds)(chance, depth)


def _string(chance: random.Random, depth: int) -> Schema:  # noqa: ARG001  the makers are alike
    low = chance.randint(0, 3)
    bounded = {"type": "string", "minLength": low, "maxLength": low + chance.randint(1, 5)}
    patterned = {"type": "string", "pattern": chance.choice([r"^[a-f]{2}-\d{1,3}$", r"^(yes|no)$", r"^x+y?$"])}
    dated = {"type": "string", "format": chance.choice(["date", "uuid"])}
    return chance.choice([bounded, patterned, dated])


def _integer(chance: random.Random, depth: int) -> Schema:  # noqa: ARG001
    low = chance.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 500)}


def _boolean(chance: random.Random, depth: int) -> Schema:  # noqa: ARG001
    return {"type": chance.choice(["boolean", "null"])}


def _enum(chance: random.Random, depth: int) -> Schema:  # noqa: ARG001
    return {"enum": chance.sample(["red", "gr\u00fcn", 'a "quote"', 7, -1.5, True, None], chance.randint(1, 4))}


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(["a", "name", "z\u00fcge", "with space", "x_1"], chance.randint(1, 4))
    return {
        "type": "object",
        "properties": {name: _any(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> Schema:
    low = chance.randint(0, 2)
    bounds = {"minItems": low, "maxItems": low + chance.randint(0, 2)}
    return {"type": "array", "items": _any(chance, depth - 1), **bounds}


def _either(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(chance, depth - 1) for _ in range(chance.randint(2, 3))]}
