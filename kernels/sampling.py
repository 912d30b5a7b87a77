"""Sampling by temperature, top-k, top-p and min-p without a sort.

With `y = (logit - max) / temperature`: top-k keeps every token at least as likely as the k-th; top-p keeps, of those,
every token before which less than `top_p` of their mass lies; min-p keeps `exp(y)` of at least `min_p`. Ties are kept
together. What is left is drawn from by the Gumbel-max rule: `argmax(y + noise)`.

A token's noise is a hash of the draw's 64-bit key and of the token's id, the same function as
`services.engine.noise`: it depends on nothing else in the batch, nor on which other tokens are left (R9).

* top-k: its threshold is looked for among the two best of each lane, which hold all of the k best unless three of them
  share a lane; a count over the row says whether they do. Where they do not, or k is large, the threshold is found by
  counting above eight values a pass, each pass leaving an eighth of the range.
* top-p: the winner among all is the winner in the nucleus if it lies inside, which the mass of the more likely tokens
  tells. If it does not, neither does any token as unlikely: those are out, and again. So no threshold is searched for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import INTERPRETED, expect_rows_contiguous, expect_shape, next_power_of_2

_EXACT = tl.constexpr(INTERPRETED)
TOP_K_RANGE = 64.0
"""Tokens less likely than the best by more than e^-64 are left out of the search for the k-th."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Draws on the device, `[n]` each.

    temperature float32 (0: greedy); top_k int32 (0: off); top_p float32 (1: off); min_p float32 (0: off);
    key_low, key_high int32: the halves of the draw's noise key; source int32: row of the logits; target int32: index
    of the output.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    key_low: torch.Tensor
    key_high: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor


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
def _scores(base, start, vocab, top, inverse_temperature, BLOCK: tl.constexpr):
    cols = start + tl.arange(0, BLOCK)
    x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
    return (x - top) * inverse_temperature


@triton.jit
def _search_threshold(base, vocab, top, inverse_temperature, top_k, RANGE: tl.constexpr, PIVOTS: tl.constexpr,
                      BLOCK: tl.constexpr):  # fmt: skip
    """Return the largest y that at least `top_k` scores reach (within float resolution), or -inf beyond RANGE.

    The first pass halves the distance from the top again and again, which suits peaked and flat rows alike; the later
    ones divide what is left evenly.
    """
    ranks = tl.arange(0, PIVOTS).to(tl.float32)
    pivots = -RANGE * tl.exp2(-ranks)
    low = float("-inf")
    high = 1.0e-6
    searching = True
    while searching:
        counts = tl.zeros([PIVOTS, BLOCK], tl.int32)
        for start in range(0, vocab, BLOCK):
            y = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
            counts += (y[None, :] >= pivots[:, None]).to(tl.int32)
        reached = tl.sum(counts, axis=1)
        enough = reached >= top_k
        new_low = tl.max(tl.where(enough, pivots, low), axis=0)
        new_high = tl.min(tl.where(enough, high, pivots), axis=0)
        exact = tl.sum((reached == top_k).to(tl.int32), axis=0) > 0
        searching = (exact == 0) & (new_low > float("-inf")) & ((new_low > low) | (new_high < high))
        low = new_low
        high = new_high
        pivots = low + (high - low) * (1.0 / PIVOTS) * ranks
    return low


@triton.jit
def _top_k_threshold(base, vocab, top, inverse_temperature, top_k, RANGE: tl.constexpr, PIVOTS: tl.constexpr,
                     BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Return the largest y that at least `top_k` scores reach (within float resolution), or -inf beyond RANGE."""
    first = tl.full([BLOCK], float("-inf"), tl.float32)
    second = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab, BLOCK):
        y = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
        second = tl.maximum(second, tl.minimum(first, y))
        first = tl.maximum(first, y)
    low = -RANGE
    high = 1.0e-6
    kept = tl.sum((first >= low).to(tl.int32) + (second >= low).to(tl.int32))
    searching = kept > top_k
    while searching:
        middle = 0.5 * (low + high)
        count = tl.sum((first >= middle).to(tl.int32) + (second >= middle).to(tl.int32))
        searching = (middle > low) & (middle < high)
        if count >= top_k:
            low = middle
            kept = count
            searching = searching & (count > top_k)
        else:
            high = middle
    found = kept >= top_k
    if found:
        counts = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab, BLOCK):
            counts += (_scores(base, start, vocab, top, inverse_temperature, BLOCK) >= low).to(tl.int32)
        found = tl.sum(counts) == kept
    if not found:
        low = _search_threshold(base, vocab, top, inverse_temperature, top_k, RANGE, PIVOTS, BLOCK_K)
    return low


@triton.jit
def _draw(base, vocab, top, inverse_temperature, floor, above, low, high, BLOCK: tl.constexpr):
    """Return `(id, y)` of the token with the largest `y + noise` among those with `y >= floor` and `y > above`."""
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_y = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], 2147483647, tl.int32)
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        y = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
        z = tl.where((y >= floor) & (y > above), y + _gumbel(cols, low, high), float("-inf"))
        better = z > best
        best_id = tl.where(better, cols, best_id)
        best_y = tl.where(better, y, best_y)
        best = tl.maximum(z, best)
    token = tl.min(tl.where(best == tl.max(best), best_id, 2147483647))
    return token, tl.max(tl.where(best_id == token, best_y, float("-inf")))


@triton.jit
def _masses(base, vocab, top, inverse_temperature, least, y, half, BLOCK: tl.constexpr):
    """Return the masses of the tokens at least as likely as `least`, and strictly more likely than `y` and `half`."""
    allowed = tl.zeros([BLOCK], tl.float32)
    more = tl.zeros([BLOCK], tl.float32)
    more_half = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        z = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
        w = tl.exp(z)
        allowed += tl.where(z >= least, w, 0.0)
        more += tl.where(z > y, w, 0.0)
        more_half += tl.where(z > half, w, 0.0)
    return tl.sum(allowed), tl.sum(more), tl.sum(more_half)


@triton.jit
def _best(base, vocab, BLOCK: tl.constexpr):
    """Return the largest logit and its lowest id."""
    best = tl.full([BLOCK], -3.0e38, tl.float32)  # finite: differences from it stay numbers where logits are -inf
    best_id = tl.minimum(tl.arange(0, BLOCK), vocab - 1)
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
        best_id = tl.where(x > best, cols, best_id)
        best = tl.maximum(x, best)
    top = tl.max(best)
    return top, tl.min(tl.where(best == top, best_id, 2147483647))


@triton.jit
def _sample(logits_ptr, out_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, low_ptr, high_ptr, source_ptr,
            target_ptr, vocab, row_stride, RANGE: tl.constexpr, PIVOTS: tl.constexpr, BLOCK: tl.constexpr,
            LANES: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """Grid `(n,)`: one program a draw; every pass after the first finds the row in L2 (0.5 MB a row)."""
    row = tl.program_id(0)
    base = logits_ptr + tl.load(source_ptr + row).to(tl.int64) * row_stride
    temperature = tl.load(temperature_ptr + row)
    inverse = 1.0 / tl.maximum(temperature, 1e-6)
    top, token = _best(base, vocab, BLOCK)
    if temperature > 0.0:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        least = float("-inf")
        if (top_k > 0) & (top_k < vocab):
            if top_k <= LANES // 16:
                least = _top_k_threshold(base, vocab, top, inverse, top_k, RANGE, PIVOTS, LANES, BLOCK_K)
            else:  # three of so many most likely share a lane somewhere
                least = _search_threshold(base, vocab, top, inverse, top_k, RANGE, PIVOTS, BLOCK_K)
        floor = least
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.log(min_p))
        low = tl.load(low_ptr + row).to(tl.uint32, bitcast=True)
        high = tl.load(high_ptr + row).to(tl.uint32, bitcast=True)
        above = float("-inf")
        searching = True
        while searching:
            token, y = _draw(base, vocab, top, inverse, floor, above, low, high, BLOCK)
            searching = (top_p < 1.0) & (y < 0.0)
            if searching:
                half = y * 0.5
                allowed, more, more_half = _masses(base, vocab, top, inverse, least, y, half, BLOCK)
                limit = top_p * allowed
                searching = more >= limit
                above = tl.where(more_half >= limit, half, y)
    tl.store(out_ptr + tl.load(target_ptr + row), token.to(out_ptr.dtype.element_ty))


def sample(logits: torch.Tensor, rows: SamplingRows, out: torch.Tensor) -> None:
    """Draw `out[target[i]]` from `logits[source[i]]`, for each i.

    Args:
        logits: `[num_rows, vocab]`, bf16 | fp16 | fp32, last dimension contiguous; -inf excludes a token.
        rows: `n` draws; a row of logits may be drawn from several times.
        out: int32 | int64, long enough for every target; only targets are written.

    Raises:
        ValueError: a shape does not fit.
    """
    vocab = logits.shape[1]
    count = rows.source.shape[0]
    for name in SamplingRows.__slots__:
        expect_shape(name, getattr(rows, name), (count,))
    expect_rows_contiguous("logits", logits)
    if count == 0:
        return
    block = min(8192, max(next_power_of_2(vocab), 64))
    _sample[(count,)](
        logits, out, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.key_low, rows.key_high, rows.source,
        rows.target, vocab, logits.stride(0), RANGE=TOP_K_RANGE, PIVOTS=8, BLOCK=block, LANES=min(block, 4096),
        BLOCK_K=min(block, 2048), num_warps=16,
    )  # fmt: skip
