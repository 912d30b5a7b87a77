"""How many messages of a session travel as one."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.message import Message

MAX_BATCH_BYTES = 1 << 20
"""Far below what a message may have, and above what one turn of an event loop has to say, long prompts apart."""

M = TypeVar("M", bound=Message)


def in_groups(protos: Iterable[M], max_bytes: int = MAX_BATCH_BYTES) -> Iterator[list[M]]:
    """In their order, as few groups as have at most so many bytes each; a message that is larger goes alone."""
    group: list[M] = []
    num_bytes = 0
    for proto in protos:
        size = proto.ByteSize()
        if group and num_bytes + size > max_bytes:
            yield group
            group, num_bytes = [], 0
        group.append(proto)
        num_bytes += size
    if group:
        yield group
