"""Sampling by temperature, top-k, top-p and min-p without a sort.

With `y = (logit - max) / temperature` and weights `exp(y)`, applied in this order: top-k keeps every token at least
as likely as the k-th; top-p keeps, of those, every token before which less than `top_p` of their mass lies; min-p
keeps weights of at least `min_p`. Ties are kept together.

* top-k: its threshold is found by counting above eight values a pass, each pass leaving an eighth of the range.
* top-p: by rejection (FlashInfer's sampling; Chen et al., 2025): draw from what is left, count the mass that is
  strictly more likely; less than `top_p` accepts, else everything up to the best refuted pivot is out, and again.
  Each draw inverts the cumulative mass, in the order of ids.

The noise of round r is Philox4x32-10 with key `seed` and counter `(r, position, choice, 0)`: a pure function of the
sequence and its length, whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import expect_rows_contiguous, expect_shape, next_power_of_2

TOP_K_RANGE = 64.0
"""Tokens less likely than the best by more than e^-64 are left out of the search for the k-th."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters on the device, one entry a row of logits.

    temperature float32 (0: greedy); top_k int32 (0: off); top_p float32 (1: off); min_p float32 (0: off);
    seed int64; choice int32; position int32 (output index of the token that is drawn).
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    choice: torch.Tensor
    position: torch.Tensor


@triton.jit
def _scores(base, start, vocab, top, inverse_temperature, BLOCK: tl.constexpr):
    cols = start + tl.arange(0, BLOCK)
    x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
    return (x - top) * inverse_temperature


@triton.jit
def _top_k_threshold(base, vocab, top, inverse_temperature, top_k, RANGE: tl.constexpr, PIVOTS: tl.constexpr,
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
def _mass(base, vocab, top, inverse_temperature, floor, BLOCK: tl.constexpr):
    """Return the mass of the tokens with `y >= floor`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        y = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
        total += tl.where(y >= floor, tl.exp(y), 0.0)
    return tl.sum(total)


@triton.jit
def _draw(base, vocab, top, inverse_temperature, floor, above, target, BLOCK: tl.constexpr):
    """Return `(id, y)` of the token in the pool (`y >= floor`, `y > above`) where the cumulative mass passes `target`.

    Rounding can leave the target past the end of the mass; then it is the pool's last token.
    """
    start = 0
    block = 0
    left = target
    rest = target
    searching = True
    while searching:
        y = _scores(base, start, vocab, top, inverse_temperature, BLOCK)
        mass = tl.sum(tl.where((y >= floor) & (y > above), tl.exp(y), 0.0))
        if mass > 0.0:
            block = start
            left = rest
        searching = rest >= mass
        rest -= mass
        start += BLOCK
        searching = searching & (start < vocab)
    y = _scores(base, block, vocab, top, inverse_temperature, BLOCK)
    weights = tl.where((y >= floor) & (y > above), tl.exp(y), 0.0)
    cols = block + tl.arange(0, BLOCK)
    passed = (tl.cumsum(weights, 0) > left) & (weights > 0.0)
    first = tl.min(tl.where(passed, cols, 2147483647))
    final = tl.max(tl.where(weights > 0.0, cols, -1))
    token = tl.where(first == 2147483647, final, first)
    return token, tl.max(tl.where(cols == token, y, float("-inf")))


@triton.jit
def _sample(  # noqa: PLR0915 - a kernel is one function
            logits_ptr, out_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seed_ptr, choice_ptr, position_ptr,
            vocab, row_stride, RANGE: tl.constexpr, PIVOTS: tl.constexpr, BLOCK: tl.constexpr,
            BLOCK_K: tl.constexpr):  # fmt: skip
    """Grid `(rows,)`: one program a row; every pass after the first finds the row in L2 (0.5 MB a row)."""
    row = tl.program_id(0)
    base = logits_ptr + row.to(tl.int64) * row_stride
    temperature = tl.load(temperature_ptr + row)
    inverse = 1.0 / tl.maximum(temperature, 1e-6)
    best = tl.full([BLOCK], -3.0e38, tl.float32)  # finite: differences from it stay numbers where logits are -inf
    best_id = tl.minimum(tl.arange(0, BLOCK), vocab - 1)
    total = tl.zeros([BLOCK], tl.float32)  # of exp((x - best) * inverse), each lane by its own best
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(base + cols, mask=cols < vocab, other=float("-inf")).to(tl.float32)
        best_id = tl.where(x > best, cols, best_id)
        new_best = tl.maximum(x, best)
        total = total * tl.exp((best - new_best) * inverse) + tl.exp((x - new_best) * inverse)
        best = new_best
    top = tl.max(best)
    token = tl.min(tl.where(best == top, best_id, 2147483647))
    if temperature > 0.0:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        floor = float("-inf")
        allowed = tl.sum(total * tl.exp((best - top) * inverse))
        if (top_k > 0) & (top_k < vocab):
            floor = _top_k_threshold(base, vocab, top, inverse, top_k, RANGE, PIVOTS, BLOCK_K)
            allowed = _mass(base, vocab, top, inverse, floor, BLOCK)
        mass = allowed
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.log(min_p))
            mass = _mass(base, vocab, top, inverse, floor, BLOCK)
        above = float("-inf")
        seed = tl.load(seed_ptr + row)
        choice = tl.load(choice_ptr + row)
        position = tl.load(position_ptr + row)
        draw = 0
        searching = True
        while searching:
            bits, _, _, _ = tl.philox(seed, draw, position, choice, 0)
            u = tl.uint_to_uniform_float(bits)
            token, y = _draw(base, vocab, top, inverse, floor, above, u * mass, BLOCK)
            searching = top_p < 1.0
            if searching:
                half = y * 0.5
                more = tl.zeros([BLOCK], tl.float32)
                more_half = tl.zeros([BLOCK], tl.float32)
                for start in range(0, vocab, BLOCK):
                    z = _scores(base, start, vocab, top, inverse, BLOCK)
                    w = tl.exp(z)
                    more += tl.where(z > y, w, 0.0)
                    more_half += tl.where(z > half, w, 0.0)
                # y is at or over the floor, so all that is more likely is in the pool: it is the next pool.
                mass = tl.sum(more)
                mass_half = tl.sum(more_half)
                limit = top_p * allowed
                searching = (mass >= limit) & (y < 0.0)
                above = tl.where(mass_half >= limit, half, y)
                mass = tl.where(mass_half >= limit, mass_half, mass)
            draw += 1
    tl.store(out_ptr + row, token.to(out_ptr.dtype.element_ty))


def sample(logits: torch.Tensor, rows: SamplingRows, out: torch.Tensor) -> None:
    """Draw one id a row.

    Args:
        logits: `[rows, vocab]`, bf16 | fp16 | fp32, last dimension contiguous; -inf excludes a token.
        rows: parameters, one entry a row of logits.
        out: `[rows]` int32 | int64, written.

    Raises:
        ValueError: a shape does not fit.
    """
    count, vocab = logits.shape
    for name in SamplingRows.__slots__:
        expect_shape(name, getattr(rows, name), (count,))
    expect_shape("out", out, (count,))
    expect_rows_contiguous("logits", logits)
    if count == 0:
        return
    block = min(8192, max(next_power_of_2(vocab), 64))
    _sample[(count,)](
        logits, out, rows.temperature, rows.top_k, rows.top_p, rows.min_p, rows.seed, rows.choice, rows.position,
        vocab, logits.stride(0), RANGE=TOP_K_RANGE, PIVOTS=8, BLOCK=block, BLOCK_K=min(block, 2048), num_warps=16,
    )  # fmt: skip
