"""What ranks of one host say to each other from within kernels, through memory that each of them can read and write.

Each rank owns a mailbox that the others write into. A word of 8 bytes carries three narrow values or a wide one and the
number of its exchange, as low-latency protocols of collectives do it: whoever waits for a word looks at the word
itself, so there is no flag to set behind it and no fence between the two, only the way over the wire.

Slots of the same number exchange with each other and count for themselves, so that nothing is reset and a CUDA graph
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
    epochs: `[slots]` int32 of this rank alone, exchanges so far of each slot, zero before the first launch.
    programs: that are sure to be on the device at the same time. No more may wait in a launch: a program that has not
        begun has told nobody anything, and would wait for the end of one that waits, on another rank, for it.
    """

    addresses: torch.Tensor
    epochs: torch.Tensor
    places: int
    rank: int
    count: int
    programs: int

    @property
    def slots(self) -> int:
        """Exchanges of one launch."""
        return int(self.epochs.shape[0])


def box_bytes(places: int, count: int) -> int:
    """Bytes of a box."""
    return 2 * count * places * 8


def words_of(itemsize: int) -> int:
    """Words that three values of `itemsize` bytes, 2 or 4, travel in."""
    return 1 if itemsize == 2 else 3


def tile_words(block_n: int, block_b: int) -> int:
    """Words that a tile of narrow values travels in, see `tell_tile`."""
    return block_n // 8 * 3 * block_b


@triton.jit
def _box(addresses_ptr, rank, sender, epoch, places, COUNT: tl.constexpr):
    """Where the words of `sender` lie in the box of `rank`."""
    return _place(tl.load(addresses_ptr + rank), sender, epoch, places, COUNT)


@triton.jit
def _place(address, sender, epoch, places, COUNT: tl.constexpr):
    """Where the words of `sender` lie in the box that begins at `address`."""
    box = address.to(tl.pointer_type(tl.int64))
    return tl.multiple_of(box + ((epoch & 1) * COUNT + sender).to(tl.int64) * places, 16)


@triton.jit
def _low(values):
    """The bits of 16-bit values as int64."""
    return values.to(tl.int16, bitcast=True).to(tl.int64) & 0xFFFF


@triton.jit
def _send(addresses_ptr, epoch, places, at, words, mask, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Store `words` in this rank's places of all other ranks' boxes, from `at` on."""
    here = at + tl.arange(0, words.shape[0])  # in this order two words go in a store of 16 bytes
    for i in tl.static_range(1, COUNT):
        tl.store(_box(addresses_ptr, (RANK + i) % COUNT, RANK, epoch, places, COUNT) + here, words, mask=mask)


@triton.jit
def tell_wide(addresses_ptr, epoch, places, at, values, mask, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Send `values`, `[n]` of 4 bytes, to all other ranks, who `hear_wide` them in exchange `epoch`; takes n places."""
    low = values.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    _send(addresses_ptr, epoch, places, at, low | (epoch.to(tl.int64) << 32), mask, RANK, COUNT)


@triton.jit
def tell(addresses_ptr, epoch, places, at, a, b, c, mask, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Send values `a`, `b` and `c`, `[n]` of 2 or 4 bytes, to all other ranks, who `hear` them in exchange `epoch`.

    They take n places from `at` on, or three times n if they are wide.
    """
    n: tl.constexpr = a.shape[0]
    if a.dtype.primitive_bitwidth == 16:
        words = _low(a) | (_low(b) << 16) | (_low(c) << 32) | (epoch.to(tl.int64) << 48)
        _send(addresses_ptr, epoch, places, at, words, mask, RANK, COUNT)
    else:
        tell_wide(addresses_ptr, epoch, places, at, a, mask, RANK, COUNT)
        tell_wide(addresses_ptr, epoch, places, at + n, b, mask, RANK, COUNT)
        tell_wide(addresses_ptr, epoch, places, at + 2 * n, c, mask, RANK, COUNT)


@triton.jit
def _heard(addresses_ptr, epoch, places, at, mask, SENDER: tl.constexpr, NUMBER_AT: tl.constexpr, RANK: tl.constexpr,
           COUNT: tl.constexpr):  # fmt: skip
    """The words of SENDER from `at` on, once they are those of exchange `epoch`: its low bits stand from NUMBER_AT on.

    Whoever calls this uses the words: Triton 3.6 cannot compile a loop whose outcome nobody uses.
    """
    here = _box(addresses_ptr, RANK, SENDER, epoch, places, COUNT) + (at + tl.arange(0, mask.shape[0]))
    expected = (epoch.to(tl.int64) << NUMBER_AT) >> NUMBER_AT
    words = tl.load(here, mask=mask, other=0, volatile=True)
    while tl.max(((words >> NUMBER_AT != expected) & mask).to(tl.int32), axis=0) > 0:
        words = tl.load(here, mask=mask, other=0, volatile=True)
    return words


@triton.jit
def hear_wide(addresses_ptr, epoch, places, at, mask, SENDER: tl.constexpr, VALUE: tl.constexpr, RANK: tl.constexpr,
              COUNT: tl.constexpr):  # fmt: skip
    """Wait for what rank SENDER sends in exchange `epoch`; return it, of type VALUE. See `tell_wide`."""
    words = _heard(addresses_ptr, epoch, places, at, mask, SENDER, 32, RANK, COUNT)
    return words.to(tl.int32).to(VALUE, bitcast=True)


@triton.jit
def hear(addresses_ptr, epoch, places, at, mask, SENDER: tl.constexpr, VALUE: tl.constexpr, RANK: tl.constexpr,
         COUNT: tl.constexpr):  # fmt: skip
    """Wait for what rank SENDER sends in exchange `epoch`; return `a`, `b` and `c`, of type VALUE. See `tell`."""
    n: tl.constexpr = mask.shape[0]
    if VALUE.primitive_bitwidth == 16:
        words = _heard(addresses_ptr, epoch, places, at, mask, SENDER, 48, RANK, COUNT)
        a = words.to(tl.int16).to(VALUE, bitcast=True)
        b = (words >> 16).to(tl.int16).to(VALUE, bitcast=True)
        c = (words >> 32).to(tl.int16).to(VALUE, bitcast=True)
    else:
        a = hear_wide(addresses_ptr, epoch, places, at, mask, SENDER, VALUE, RANK, COUNT)
        b = hear_wide(addresses_ptr, epoch, places, at + n, mask, SENDER, VALUE, RANK, COUNT)
        c = hear_wide(addresses_ptr, epoch, places, at + 2 * n, mask, SENDER, VALUE, RANK, COUNT)
    return a, b, c


@triton.jit
def _apart(values):
    """Lines 0, 2, 4 ... and lines 1, 3, 5 ... of `[n, b]`."""
    n: tl.constexpr = values.shape[0] // 2
    return tl.split(tl.permute(tl.reshape(values, (n, 2, values.shape[1])), (0, 2, 1)))


@triton.jit
def _together(even, odd):
    """The reverse of `_apart`."""
    n: tl.constexpr = 2 * even.shape[0]
    return tl.reshape(tl.permute(tl.join(even, odd), (0, 2, 1)), (n, even.shape[1]))


@triton.jit
def _word(a, b, c, number):
    return _low(a) | (_low(b) << 16) | (_low(c) << 32) | number


@triton.jit
def pack_tile(values, epoch):
    """Three words for each 8 lines of `values`, `[n, b]` of 2 bytes, with the number of exchange `epoch`: `[n / 8, b]`
    each. A thread that holds 8 lines of a column needs no other thread's values."""
    even, odd = _apart(values)
    even_even, even_odd = _apart(even)
    odd_even, odd_odd = _apart(odd)
    a, b = _apart(even_even)
    c, d = _apart(even_odd)
    e, f = _apart(odd_even)
    g, h = _apart(odd_odd)
    number = epoch.to(tl.int64) << 48
    return _word(a, b, c, number), _word(d, e, f, number), _low(g) | (_low(h) << 16) | number


@triton.jit
def _value(word, AT: tl.constexpr, VALUE: tl.constexpr):
    return (word >> AT).to(tl.int16).to(VALUE, bitcast=True)


@triton.jit
def unpack_tile(first, second, third, VALUE: tl.constexpr):
    """The reverse of `pack_tile`."""
    even_even = _together(_value(first, 0, VALUE), _value(first, 16, VALUE))
    even_odd = _together(_value(first, 32, VALUE), _value(second, 0, VALUE))
    odd_even = _together(_value(second, 16, VALUE), _value(second, 32, VALUE))
    odd_odd = _together(_value(third, 0, VALUE), _value(third, 16, VALUE))
    return _together(_together(even_even, even_odd), _together(odd_even, odd_odd))


@triton.jit
def box_addresses(addresses_ptr, COUNT: tl.constexpr):
    """Where all boxes begin: asked for early, so that nobody waits for that when there is something to tell."""
    addresses = (tl.load(addresses_ptr),)
    for r in tl.static_range(1, COUNT):
        addresses = addresses + (tl.load(addresses_ptr + r),)  # type: ignore[assignment] # noqa: RUF005
    return addresses


@triton.jit
def tell_tile(addresses, epoch, places, here, first, second, third, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Send what `pack_tile` made to all other ranks, who `hear_tile` it. `addresses`: of `box_addresses`; `here`: int64
    `[n / 8, b]`, where the words of each column lie in a box, 3 * n / 8 of them."""
    lines: tl.constexpr = first.shape[0]
    for i in tl.static_range(1, COUNT):
        box = _place(addresses[(RANK + i) % COUNT], RANK, epoch, places, COUNT) + here
        tl.store(box, first)
        tl.store(box + lines, second)
        tl.store(box + 2 * lines, third)


@triton.jit
def hear_tile(addresses, epoch, places, here, SENDER: tl.constexpr, RANK: tl.constexpr, COUNT: tl.constexpr):
    """Wait for the words that rank SENDER sends in exchange `epoch`; return them for `unpack_tile`."""
    lines: tl.constexpr = here.shape[0]
    box = _place(addresses[RANK], SENDER, epoch, places, COUNT) + here
    expected = (epoch.to(tl.int64) << 48) >> 48
    first = tl.load(box, volatile=True)
    second = tl.load(box + lines, volatile=True)
    third = tl.load(box + 2 * lines, volatile=True)
    while _any((first >> 48 != expected) | (second >> 48 != expected) | (third >> 48 != expected)):
        first = tl.load(box, volatile=True)
        second = tl.load(box + lines, volatile=True)
        third = tl.load(box + 2 * lines, volatile=True)
    return first, second, third


@triton.jit
def _any(flags):
    return tl.max(tl.max(flags.to(tl.int32), axis=0), axis=0) > 0
