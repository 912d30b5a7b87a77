"""Sampling by temperature, top-k, top-p and min-p without a sort.

With `y = (logit - max) / temperature`: top-k keeps every token at least as likely as the k-th; top-p keeps, of those,
every token before which less than `top_p` of their mass lies; min-p keeps `exp(y)` of at least `min_p`. Ties are kept
together. What is left is drawn from by the Gumbel-max rule: `argmax(y + noise)`.

A token's noise is a hash of the draw's 64-bit key and of the token's id, the same function as
`services.engine.noise`: it depends on nothing else in the batch, nor on which other tokens are left (R9).

* top-k: its threshold is looked for among the two best of each lane, which hold all of the k best unless three of them
  share a lane; a count over the row says whether they do. Where they do not, or k is large, the threshold is found by
  counting above eight values a pass, each pass leaving an eighth of the range.
* top-p: `kernels.drawing` looks at the winners among all until one lies in the nucleus.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.drawing import draw, scores
from kernels.launch import expect_rows_contiguous, expect_shape, next_power_of_2

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
            y = scores(base, start, vocab, top, inverse_temperature, BLOCK)
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
        y = scores(base, start, vocab, top, inverse_temperature, BLOCK)
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
            counts += (scores(base, start, vocab, top, inverse_temperature, BLOCK) >= low).to(tl.int32)
        found = tl.sum(counts) == kept
    if not found:
        low = _search_threshold(base, vocab, top, inverse_temperature, top_k, RANGE, PIVOTS, BLOCK_K)
    return low


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
            BLOCK_K: tl.constexpr):  # fmt: skip
    """Grid `(n,)`: one program a draw; every pass after the first finds the row in L2 (0.5 MB a row)."""
    row = tl.program_id(0)
    base = logits_ptr + tl.load(source_ptr + row).to(tl.int64) * row_stride
    temperature = tl.load(temperature_ptr + row)
    inverse = 1.0 / tl.maximum(temperature, 1e-6)
    top_k = tl.load(top_k_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    is_cut = (top_k > 0) & (top_k < vocab)
    origin = 0.0
    token = 0
    if (temperature <= 0.0) | is_cut | (min_p > 0.0):
        origin, token = _best(base, vocab, BLOCK)
    if temperature > 0.0:
        least = float("-inf")
        if is_cut:
            if top_k <= BLOCK // 16:
                least = _top_k_threshold(base, vocab, origin, inverse, top_k, RANGE, PIVOTS, BLOCK, BLOCK_K)
            else:  # three of so many most likely share a lane somewhere
                least = _search_threshold(base, vocab, origin, inverse, top_k, RANGE, PIVOTS, BLOCK_K)
        floor = least
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.log(min_p))
        low = tl.load(low_ptr + row).to(tl.uint32, bitcast=True)
        high = tl.load(high_ptr + row).to(tl.uint32, bitcast=True)
        token = draw(base, vocab, origin, inverse, least, floor, tl.load(top_p_ptr + row), low, high, BLOCK)
    tl.store(out_ptr + tl.load(target_ptr + row), token)


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
    block = min(4096, max(next_power_of_2(vocab), 64))
    _sample[(count,)](
        logits, out, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.key_low, rows.key_high, rows.source,
        rows.target, vocab, logits.stride(0), RANGE=TOP_K_RANGE, PIVOTS=8, BLOCK=block,
        BLOCK_K=min(block, 2048), num_warps=32,
    )  # fmt: skip
