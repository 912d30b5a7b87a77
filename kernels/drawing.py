"""A draw from the scores of one row: noise by token, and a nucleus found without a sort or a threshold.

The winner among all is the winner in the nucleus if it lies inside, which the mass of the more likely tokens tells. If
it does not, neither does any token as unlikely: those are out, and again. One pass over the row finds each lane's best;
the next winners are looked for among those, four in all, and a second pass tells the masses of all four. That is the
end of it unless all four lie outside, or a better token may be hidden behind a lane's best that is out: a few rows in
10^4 at top-p 0.9.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.launch import INTERPRETED

_EXACT = tl.constexpr(INTERPRETED)


@triton.jit
def _mix(x):
    """Mix 32 bits with full avalanche (C. Wellons's lowbias32)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _log(x):
    """Return log(x) by the hardware's approximation, to about 1e-6: noise needs no more, and a full one costs twice."""
    if _EXACT:
        y = tl.log(x)
    else:
        y = tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
        y = y * 0.6931471805599453
    return y


@triton.jit
def _gumbel(cols, low, high):
    """Return standard Gumbel noise of token ids `cols` under a key's halves, uint32.

    -log(-log(1 - u)), where the inner logarithm of a small u comes from its series: 1 - u would round it away.
    """
    bits = _mix(_mix(cols.to(tl.uint32) * 0x9E3779B1 ^ low) + high)
    u = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * (0.25 + u * 0.2))))
    return -_log(tl.where(u < 0.015625, series, -_log(1.0 - u)))


@triton.jit
def scores(base, start, vocab, top, inverse_temperature, BLOCK: tl.constexpr):
    cols = start + tl.arange(0, BLOCK)
    x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
    return (x - top) * inverse_temperature


@triton.jit
def _lanes(base, vocab, origin, inverse_temperature, floor, above, low, high, BLOCK: tl.constexpr):
    """Return, lane by lane, the best of `y + noise` among tokens with `y >= floor` and `y > above`: the sum, its y and
    its id, and the second best sum; and the largest y of all tokens."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_y = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.minimum(tl.arange(0, BLOCK), vocab - 1)
    second = tl.full([BLOCK], float("-inf"), tl.float32)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        y = scores(base, start, vocab, origin, inverse_temperature, BLOCK)
        z = tl.where((y >= floor) & (y > above), y + _gumbel(cols, low, high), float("-inf"))
        better = z > best
        second = tl.maximum(second, tl.minimum(best, z))
        best_id = tl.where(better, cols, best_id)
        best_y = tl.where(better, y, best_y)
        best = tl.maximum(z, best)
        top = tl.maximum(top, y)
    return best, best_y, best_id, second, tl.max(top)


@triton.jit
def _winner(best, best_y, best_id, second, above):
    """Return `(id, y, certain)` of the token with the largest sum among those more likely than `above`.

    It is not certain where a token that may be better is hidden behind a lane's best, which is out.
    """
    inside = best_y > above
    z = tl.where(inside, best, float("-inf"))
    won = tl.max(z)
    token = tl.min(tl.where(z == won, best_id, 2147483647))
    y = tl.max(tl.where(best_id == token, best_y, float("-inf")))
    return token, y, won > tl.max(tl.where(inside, float("-inf"), second))


@triton.jit
def _masses(base, vocab, origin, inverse_temperature, top, least, y1, y2, y3, y4, BLOCK: tl.constexpr):
    """Return the masses of the tokens at least as likely as `least`, and of those more likely than each of four."""
    allowed = tl.zeros([BLOCK], tl.float32)
    more1 = tl.zeros([BLOCK], tl.float32)
    more2 = tl.zeros([BLOCK], tl.float32)
    more3 = tl.zeros([BLOCK], tl.float32)
    more4 = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        y = scores(base, start, vocab, origin, inverse_temperature, BLOCK)
        w = tl.exp(y - top)
        allowed += tl.where(y >= least, w, 0.0)
        more1 += tl.where(y > y1, w, 0.0)
        more2 += tl.where(y > y2, w, 0.0)
        more3 += tl.where(y > y3, w, 0.0)
        more4 += tl.where(y > y4, w, 0.0)
    return tl.sum(allowed), tl.sum(more1), tl.sum(more2), tl.sum(more3), tl.sum(more4)


@triton.jit
def draw(base, vocab, origin, inverse_temperature, least, floor, top_p, low, high, BLOCK: tl.constexpr):
    """Return the id drawn among tokens with `y >= floor`, in the nucleus of those with `y >= least`."""
    token = 0
    above = float("-inf")  # the likeliest token known to lie outside the nucleus
    searching = True
    while searching:
        best, best_y, best_id, second, top = _lanes(
            base, vocab, origin, inverse_temperature, floor, above, low, high, BLOCK
        )
        token, y1, _ = _winner(best, best_y, best_id, second, above)
        searching = (top_p < 1.0) & (y1 < top)
        if searching:
            token2, y2, sure2 = _winner(best, best_y, best_id, second, y1)
            token3, y3, sure3 = _winner(best, best_y, best_id, second, y2)
            token4, y4, sure4 = _winner(best, best_y, best_id, second, y3)
            allowed, more1, more2, more3, more4 = _masses(
                base, vocab, origin, inverse_temperature, top, least, y1, y2, y3, y4, BLOCK
            )
            limit = top_p * allowed
            above = y1
            searching = more1 >= limit
            known = searching & sure2
            if known:
                token = token2
                above = y2
                searching = (more2 >= limit) & (y2 < top)
            known = known & searching & sure3
            if known:
                token = token3
                above = y3
                searching = (more3 >= limit) & (y3 < top)
            known = known & searching & sure4
            if known:
                token = token4
                above = y4
                searching = (more4 >= limit) & (y4 < top)
    return token
