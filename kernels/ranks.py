"""What ranks of one host say to each other from within kernels, through memory that each of them can read and write.

Each rank owns a mailbox that the others write into. A word of 8 bytes carries three narrow values or a wide one and the
number of its exchange, as low-latency protocols of collectives do it: whoever waits for a word looks at the word
itself, so there is no flag to set behind it and no fence between the two, only the way over the wire.

Programs of the same number exchange with each other and count for themselves, so that nothing is reset and a CUDA graph
can repeat the launch. Two places are written in turn: who sends a second time has heard what the others sent in the
exchange between, and they sent that after the first one had ended for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One rank's view of all ranks' boxes: `[2, count, places]` words each, zero before the first launch.

    addresses: `[count]` int64, where each rank's box begins, as this rank's device sees it.
    epochs: `[slots]` int32 of this rank alone, exchanges so far of each program, zero before the first launch.
    """

    addresses: torch.Tensor
    epochs: torch.Tensor
    places: int
    rank: int
    count: int

    @property
    def slots(self) -> int:
        """Programs that may exchange in one launch."""
        return int(self.epochs.shape[0])


def box_bytes(places: int, count: int) -> int:
    """Bytes of a box."""
    return 2 * count * places * 8


def words_of(itemsize: int) -> int:
    """Words that three values of `itemsize` bytes, 2 or 4, travel in."""
    return 1 if itemsize == 2 else 3


@triton.jit
def _box(addresses_ptr, rank, sender, epoch, places, COUNT: tl.constexpr):
    """Where the words of `sender` lie in the box of `rank`."""
    box = tl.load(addresses_ptr + rank).to(tl.pointer_type(tl.int64))
    return tl.multiple_of(box + ((epoch & 1) * COUNT + sender).to(tl.int64) * places, 16)


@triton.jit
def _low(values):
    """The bits of 16-bit values as int64."""
    return values.to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF


@triton.jit
def _wide(values, epoch):
    """A word for each 32-bit value, below the number."""
    return (values.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | (epoch.to(tl.int64) << 32)


@triton.jit
def tell(addresses_ptr, epoch, places, at, a, b, c, mask, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Send values `a`, `b` and `c`, `[n]` of 2 or 4 bytes, to all other ranks, who `hear` them in exchange `epoch`.

    They take n places from `at` on, or three times n if they are wide.
    """
    here = at + tl.arange(0, a.shape[0])
    for i in tl.static_range(1, COUNT):
        there = _box(addresses_ptr, (RANK + i) % COUNT, RANK, epoch, places, COUNT) + here
        if a.dtype.primitive_bitwidth == 16:
            words = _low(a) | (_low(b) << 16) | (_low(c) << 32) | (epoch.to(tl.int64) << 48)
            tl.store(there, words, mask=mask)
        else:
            tl.store(there, _wide(a, epoch), mask=mask)
            tl.store(there + a.shape[0], _wide(b, epoch), mask=mask)
            tl.store(there + 2 * a.shape[0], _wide(c, epoch), mask=mask)


@triton.jit
def _heard(here, epoch, mask, NUMBER_AT: tl.constexpr):
    """The words in places `here` once they are those of exchange `epoch`, whose low bits stand from NUMBER_AT on."""
    expected = (epoch.to(tl.int64) << NUMBER_AT) >> NUMBER_AT
    words = tl.load(here, mask=mask, other=0, volatile=True)
    while tl.max(((words >> NUMBER_AT != expected) & mask).to(tl.int32), axis=0) > 0:
        words = tl.load(here, mask=mask, other=0, volatile=True)
    return words


@triton.jit
def hear(addresses_ptr, epoch, places, at, mask, SENDER: tl.constexpr, VALUE: tl.constexpr, RANK: tl.constexpr,
         COUNT: tl.constexpr):  # fmt: skip
    """Wait for what rank SENDER sends in exchange `epoch`; return `a`, `b` and `c`, of type VALUE. See `tell`."""
    n: tl.constexpr = mask.shape[0]
    here = _box(addresses_ptr, RANK, SENDER, epoch, places, COUNT) + at + tl.arange(0, n)
    if VALUE.primitive_bitwidth == 16:
        words = _heard(here, epoch, mask, 48)
        a = words.to(tl.int16).to(VALUE, bitcast=True)
        b = (words >> 16).to(tl.int16).to(VALUE, bitcast=True)
        c = (words >> 32).to(tl.int16).to(VALUE, bitcast=True)
    else:
        a = _heard(here, epoch, mask, 32).to(tl.int32).to(VALUE, bitcast=True)
        b = _heard(here + n, epoch, mask, 32).to(tl.int32).to(VALUE, bitcast=True)
        c = _heard(here + 2 * n, epoch, mask, 32).to(tl.int32).to(VALUE, bitcast=True)
    return a, b, c
