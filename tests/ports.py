"""Loopback ports for processes under test that are told their port before they listen.

A port that the kernel gave may be an outgoing connection's before the process comes to bind it. These are outside the
range that connections get theirs from, and each test process has a block of its own.
"""

import contextlib
import functools
import itertools
import os
import socket
from collections.abc import Iterator

from services.common.ports import LOOPBACK, is_free, outgoing_ports

FIRST, END = 10_000, 65_536
BLOCK = 500
"""Ports of one test process; more than a run of all tests holds at a time."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody has, not given again until the whole block was."""
    found = list(itertools.islice(filter(is_free, itertools.islice(_block(), BLOCK)), count))
    assert len(found) == count, f"{count} ports wanted, {len(found)} of a block of {BLOCK} are free"
    return found


@functools.cache
def _block() -> Iterator[int]:
    """The ports of this process's block, over and over. The first is the block's lock: bound until the process ends."""
    blocks = blocks_outside(outgoing_ports())
    for at in range(len(blocks)):
        block = blocks[(os.getpid() + at) % len(blocks)]
        with contextlib.suppress(OSError):
            _lock.bind((LOOPBACK, block[0]))
            return itertools.cycle(block[1:])
    raise AssertionError("every block of ports is another test process's")


def blocks_outside(outgoing: range) -> list[range]:
    """Blocks without a port of that range; all blocks where none is."""
    blocks = [range(first, first + BLOCK) for first in range(FIRST, END - BLOCK, BLOCK)]
    return [block for block in blocks if not {block[0], block[-1]} & set(outgoing)] or blocks


_lock = socket.socket()
