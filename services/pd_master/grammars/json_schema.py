"""JSON schemas, checked for what grammars cannot hold an output to: ignoring a keyword would be a silent lie.

Lengths of strings become patterns: the compiler's own bounded strings would let raw control characters through, which
JSON does not allow, and halves of surrogate pairs, which no decoder takes for one character.
"""

from typing import Any

from services.common.errors import InvalidRequestError

MAX_DEPTH = 64
_REFUSED = frozenset(
    {
        "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "multipleOf", "contains",
        "minContains", "maxContains", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
_ONE = ("items", "additionalItems", "additionalProperties", "propertyNames", "unevaluatedItems",
        "unevaluatedProperties")  # fmt: skip
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def checked_schema(schema: object, field: str) -> Any:  # noqa: ANN401  JSON has no type
    """The schema as the compiler takes it. Raises InvalidRequestError naming the place at fault."""
    return _checked(schema, field, MAX_DEPTH)


def _checked(schema: object, at: str, depth: int) -> Any:  # noqa: ANN401
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise _wrong(at, "a schema is an object or a boolean")
    if depth == 0:
        raise _wrong(at, f"nested deeper than {MAX_DEPTH} levels")
    _check_keywords(schema, at)
    return _with_pattern(schema, at) | _parts(schema, at, depth - 1)


def _parts(schema: dict[str, Any], at: str, depth: int) -> dict[str, Any]:
    """The schemas inside, checked."""
    parts: dict[str, Any] = {}
    for key in _MANY:
        if isinstance(schema.get(key), list):
            parts[key] = [_checked(one, f"{at}.{key}[{i}]", depth) for i, one in enumerate(schema[key])]
    for key in _ONE:
        if key in schema and key not in parts:
            parts[key] = _checked(schema[key], f"{at}.{key}", depth)
    for key in _NAMED:
        if key in schema:
            if not isinstance(schema[key], dict):
                raise _wrong(f"{at}.{key}", "must be an object")
            parts[key] = {name: _checked(one, f"{at}.{key}.{name}", depth) for name, one in schema[key].items()}
    return parts


def _check_keywords(schema: dict[str, Any], at: str) -> None:
    for key in _REFUSED & schema.keys():
        raise _wrong(f"{at}.{key}", "not supported in schemas that outputs are held to")
    if schema.get("uniqueItems"):
        raise _wrong(f"{at}.uniqueItems", "not supported in schemas that outputs are held to")
    if len(schema.get("allOf") or ()) > 1:
        raise _wrong(f"{at}.allOf", "only one schema is supported")
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise _wrong(f"{at}.$ref", "only references into the schema itself are supported")


def _with_pattern(schema: dict[str, Any], at: str) -> dict[str, Any]:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if (not low and high is None) or "enum" in schema or "const" in schema:
        return schema
    for key in ("pattern", "format"):
        if key in schema:
            raise _wrong(f"{at}.{key}", "not supported together with minLength or maxLength")
    for key, value in (("minLength", low), ("maxLength", high)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise _wrong(f"{at}.{key}", "must be a whole number, 0 or more")
    if high is not None and high < low:
        raise _wrong(f"{at}.maxLength", "less than minLength")
    rest = {key: value for key, value in schema.items() if key not in {"minLength", "maxLength"}}
    return rest | {"pattern": f"^[^\\x00-\\x1f\\ud800-\\udfff]{{{low},{'' if high is None else high}}}$"}


def _wrong(at: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"{at}: {problem}", param=at)
