"""Routed experts: one grouped product over all (token, expert) pairs, sorted by expert.

    inner[i]  = silu(x[token_i] @ gate_e.T) * (x[token_i] @ up_e.T)      pair i, in the order of experts
    outer[p_i] = weight[p_i] * (inner[i] @ down_e.T)                     back in the order of pairs

A block of rows belongs to one expert, whose pairs are padded to whole blocks; so an expert's weights are read once for
each block, and experts that no token chose are not read at all. The plan is made on the device, with sizes that follow
from the number of tokens alone: a step with experts can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import dot, expect_shape


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Which rows are whose, int32: `order [pairs]` pair of each sorted place; `experts, first, last [max_blocks]` of
    each block: its expert, and its sorted places `first .. last` (an empty range where a block is not needed)."""

    order: torch.Tensor
    experts: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    block_rows: int


def expert_plan(chosen: torch.Tensor, num_experts: int, block_rows: int) -> ExpertPlan:
    """Sort the pairs of `chosen [num_tokens, k]` int64 by expert. Allocates, and never waits for the device."""
    pairs = chosen.flatten()
    order = pairs.argsort(stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=chosen.device)
    counts.scatter_add_(0, pairs, torch.ones_like(pairs))
    blocks = (counts + block_rows - 1) // block_rows
    max_blocks = min(pairs.numel(), pairs.numel() // block_rows + num_experts)
    number = torch.arange(max_blocks, device=chosen.device)
    block_ends = blocks.cumsum(0)
    experts = torch.searchsorted(block_ends, number, right=True).clamp_(max=num_experts - 1)
    starts = counts.cumsum(0) - counts
    first = starts[experts] + (number - (block_ends - blocks)[experts]) * block_rows
    last = torch.minimum(first + block_rows, (starts + counts)[experts])
    return ExpertPlan(order.int(), experts.int(), first.int(), last.int(), block_rows)


@triton.jit
def _grouped(x_ptr, w_ptr, out_ptr, weights_ptr, order_ptr, experts_ptr, first_ptr, last_ptr, n, k, x_stride,
             out_stride, w_stride, NUM_CHOSEN: tl.constexpr, GATED: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Grid `(max_blocks, cdiv(n, BLOCK_N))`; weight offsets are 64-bit."""
    block = tl.program_id(0)
    last = tl.load(last_ptr + block)
    places = tl.load(first_ptr + block) + tl.arange(0, BLOCK_M)
    live = places < last
    if tl.load(first_ptr + block) >= last:
        return
    pairs = tl.load(order_ptr + places, mask=live, other=0)
    rows_in = pairs // NUM_CHOSEN if GATED else places
    rows_out = places if GATED else pairs
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    expert = w_ptr + tl.load(experts_ptr + block).to(tl.int64) * w_stride
    rows_w = tl.minimum(cols, n - 1).to(tl.int64)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + rows_in.to(tl.int64)[:, None] * x_stride + ks[None, :],
                    mask=live[:, None] & (ks < k)[None, :], other=0.0)  # fmt: skip
        inside = (ks < k)[:, None]
        w = tl.load(expert + rows_w[None, :] * k + ks[:, None], mask=inside, other=0.0)
        acc = dot(x, w, acc, PRECISION)
        if GATED:
            w = tl.load(expert + (n + rows_w)[None, :] * k + ks[:, None], mask=inside, other=0.0)
            up = dot(x, w, up, PRECISION)
    if GATED:
        acc = acc * tl.sigmoid(acc) * up
    else:
        acc = acc * tl.load(weights_ptr + pairs, mask=live, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + rows_out.to(tl.int64)[:, None] * out_stride + cols[None, :], acc.to(out_ptr.dtype.element_ty),
             mask=live[:, None] & (cols < n)[None, :])  # fmt: skip


def routed_experts(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Return `sum_j weights[:, j] * gated MLP of expert chosen[:, j]`, `[num_tokens, hidden]`.

    Args:
        x: `[num_tokens, hidden]`, bf16 | fp16 | fp32, contiguous.
        chosen: `[num_tokens, k]` int64; weights: `[num_tokens, k]`.
        gate_up: `[num_experts, 2 * intermediate, hidden]`, gate rows first.
        down: `[num_experts, hidden, intermediate]`.

    Raises:
        ValueError: a shape does not fit.
    """
    (tokens, hidden), num_chosen = x.shape, chosen.shape[1]
    num_experts, width = gate_up.shape[0], down.shape[2]
    expect_shape("gate_up", gate_up, (num_experts, 2 * width, hidden))
    expect_shape("down", down, (num_experts, hidden, width))
    expect_shape("weights", weights, (tokens, num_chosen))
    rows_each = max(1, tokens * num_chosen // num_experts)
    plan = expert_plan(chosen, num_experts, 16 if rows_each <= 16 else 64)
    pairs = tokens * num_chosen
    inner, outer = x.new_empty(pairs, width), x.new_empty(pairs, hidden)
    _launch(x, gate_up, inner, weights, plan, num_chosen, gated=True)
    _launch(inner, down, outer, weights, plan, num_chosen, gated=False)
    return outer.view(tokens, num_chosen, hidden).sum(1)


def _launch(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, weights: torch.Tensor, plan: ExpertPlan, num_chosen: int,
    *, gated: bool,
) -> None:  # fmt: skip
    n, k = out.shape[1], x.shape[1]
    block_n = 64
    _grouped[(plan.experts.shape[0], triton.cdiv(n, block_n))](
        x, w, out, weights, plan.order, plan.experts, plan.first, plan.last, n, k, x.stride(0), out.stride(0),
        w.stride(0), NUM_CHOSEN=num_chosen, GATED=gated, BLOCK_M=plan.block_rows, BLOCK_N=block_n, BLOCK_K=64,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32", num_warps=4,
    )  # fmt: skip
