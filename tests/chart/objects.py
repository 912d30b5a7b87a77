"""Looking into rendered objects."""

from typing import Any


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The objects of one kind."""
    return [one for one in objects if one["kind"] == kind]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of this kind and name."""
    (found,) = (one for one in of_kind(objects, kind) if one["metadata"]["name"] == name)
    return found


def container(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The only container of a Deployment."""
    (found,) = named(objects, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
