"""What a body may hold at one place, read off its type: for the messages of errors, which are rare."""

import difflib
import functools
import re
from collections.abc import Iterator

import msgspec.inspect as types

_STEP = re.compile(r"\.?([^.\[\]]+)|\[[^\]]*\]")


def allowed_at(body_type: type, path: str) -> list[str]:
    """The values of the enumeration at a path such as `messages[0].role`; empty where there is none."""
    parent, _, name = path.rpartition(".")
    found = [str(value) for one in _at(body_type, path) if isinstance(one, types.LiteralType) for value in one.values]
    tags = [
        str(one.tag) for one in _at(body_type, parent) if isinstance(one, types.StructType) and one.tag_field == name
    ]
    return sorted({*found, *tags})


def nearest_field(body_type: type, parent: str, name: str) -> str | None:
    """The field of the object at `parent` that a misspelt name was meant to be, if one is near."""
    fields = [
        field.encode_name for one in _at(body_type, parent) if isinstance(one, types.StructType) for field in one.fields
    ]
    return next(iter(difflib.get_close_matches(name, fields, n=1, cutoff=0.75)), None)


def _at(body_type: type, path: str) -> list[types.Type]:
    """What may stand there: all members of unions on the way are followed."""
    found = list(_members(_type_info(body_type)))
    for step in _STEP.finditer(path):
        found = [inner for one in found for inner in _below(one, step[1])]
    return found


@functools.cache
def _type_info(body_type: type) -> types.Type:
    return types.type_info(body_type)


def _members(one: types.Type) -> Iterator[types.Type]:
    match one:
        case types.UnionType(members):
            for member in members:
                yield from _members(member)
        case types.Metadata(inner):
            yield from _members(inner)
        case _:
            yield one


def _below(one: types.Type, name: str | None) -> Iterator[types.Type]:
    """The types of a field of that name, without one of an array's elements."""
    if isinstance(one, types.StructType):
        for field in one.fields:
            if field.encode_name == name:
                yield from _members(field.type)
    elif isinstance(one, types.ListType) and name is None:
        yield from _members(one.item_type)
