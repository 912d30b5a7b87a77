"""Names of prompt prefixes, the same in every engine and every master.

A prompt is cut into blocks of BLOCK_TOKENS tokens; the name of a block is a hash of its tokens and of the name of the
block before it, so that it stands for all tokens up to its end: two prompts share a name exactly where they are equal
up to there. A name is 64 bits of BLAKE2b: among ten million blocks some two share a name once in 400,000 clusters, and
all that comes of it is a prompt sent to the wrong worker.
"""

import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b

BLOCK_TOKENS = 64
"""Short enough for the system prompts that chats share; a pool of 800,000 slots has 12,500 such blocks to tell of."""
ROOT = 0
"""Stands before the first block."""
_BLOCK_BYTES = 4 * BLOCK_TOKENS
assert sys.byteorder == "little", "ids are packed as this machine has them, and are little-endian on the wire"


def packed_names(packed: bytes, before: int = ROOT) -> list[int]:
    """Names of all whole blocks of ids packed as int32, little-endian, behind the block named `before`, in order."""
    name, names = before.to_bytes(8, "little"), []
    for start in range(0, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        name = _next(name, packed[start : start + _BLOCK_BYTES])
        names.append(int.from_bytes(name, "little"))
    return names


def prompt_names(prompt_ids: list[int]) -> Iterator[int]:
    """The same of a prompt, one by one: who finds none of the first ones has no use for the rest. 2 us a block."""
    name = ROOT.to_bytes(8, "little")
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        name = _next(name, array("i", prompt_ids[start : start + BLOCK_TOKENS]).tobytes())
        yield int.from_bytes(name, "little")


def _next(name: bytes, block: bytes) -> bytes:
    return blake2b(name + block, digest_size=8).digest()
