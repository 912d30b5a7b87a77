"""Routed experts."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.experts import expert_plan, routed_experts
from tests.kernels.close import assert_close


@pytest.mark.parametrize(("tokens", "experts", "k", "hidden", "width"), [(1, 4, 2, 32, 24), (9, 6, 3, 70, 40)])
def test_experts_equal_the_reference(
    device: torch.device, dtype: torch.dtype, tokens: int, experts: int, k: int, hidden: int, width: int
) -> None:
    x = torch.randn(tokens, hidden, device=device).to(dtype)
    chosen = torch.stack([torch.randperm(experts, device=device)[:k] for _ in range(tokens)])
    weights = torch.rand(tokens, k, device=device).to(dtype)
    gate_up = (torch.randn(experts, 2 * width, hidden, device=device) * hidden**-0.5).to(dtype)
    down = (torch.randn(experts, hidden, width, device=device) * width**-0.5).to(dtype)
    expected = reference.routed_experts(x, chosen, weights, gate_up, down)
    assert_close(routed_experts(x, chosen, weights, gate_up, down), expected, 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("block_rows", [4, 16])
def test_every_pair_is_in_one_block_of_its_expert(device: torch.device, block_rows: int) -> None:
    chosen = torch.tensor([[0, 3], [3, 5], [3, 0], [3, 1], [3, 5], [3, 0]], device=device)
    plan = expert_plan(chosen, 7, block_rows)
    seen = []
    for expert, first, last in zip(plan.experts.tolist(), plan.first.tolist(), plan.last.tolist(), strict=True):
        assert last - first <= block_rows
        mine = plan.order[first : max(first, last)].long()
        assert set(chosen.flatten()[mine].tolist()) <= {expert}
        seen += mine.tolist()
    assert sorted(seen) == list(range(12))
