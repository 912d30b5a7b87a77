"""The small-batch product and each of its edges."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.skinny_gemm import GemmShape, NormIn, NormOut, SplitSpace, skinny_gemm
from tests.kernels.close import assert_close


def scratch(device: torch.device) -> SplitSpace:
    return SplitSpace(torch.full((1 << 17,), float("nan"), device=device),
                      torch.zeros(64, dtype=torch.int32, device=device))  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "n", "k", "shape"),
    [
        (1, 64, 128, GemmShape(64, 16, 64)),
        (3, 100, 96, GemmShape(64, 16, 64)),
        (17, 130, 320, GemmShape(64, 16, 64, split_k=3)),
        (33, 192, 576, GemmShape(32, 64, 64, split_k=2)),
        (5, 100, 320, GemmShape(64, 16, 64)),
    ],
)
def test_product_equals_reference(
    device: torch.device, dtype: torch.dtype, rows: int, n: int, k: int, shape: GemmShape
) -> None:
    x, w = torch.randn(rows, k, device=device).to(dtype), torch.randn(n, k, device=device).to(dtype)
    bias = torch.randn(n, device=device).to(dtype)
    out = torch.full((rows, n), float("nan"), device=device, dtype=dtype)
    space = scratch(device)
    skinny_gemm(x, w, out, shape, bias=bias, split=space)
    assert_close(out, x.double() @ w.double().T + bias.double())
    assert space.arrived.sum() == 0


def test_residual_and_norm_edges_chain_into_a_normed_product(device: torch.device, dtype: torch.dtype) -> None:
    """`residual + x @ w.T`, its norm, and a second product of that norm: two launches, no kernel between them."""
    rows, k, n, m, eps = 5, 128, 192, 96, 1e-5
    x, w = torch.randn(rows, k, device=device).to(dtype), (torch.randn(n, k, device=device) / 16).to(dtype)
    residual, weight = torch.randn(rows, n, device=device).to(dtype), torch.randn(n, device=device).to(dtype)
    second = (torch.randn(m, n, device=device) / 16).to(dtype)
    total = residual.double() + x.double() @ w.double().T
    scaled = torch.full((rows, n), float("nan"), device=device, dtype=dtype)
    squares = torch.full((3, rows), float("nan"), device=device)
    skinny_gemm(x, w, residual, GemmShape(64, 16, 64, split_k=2), residual=residual,
                norm_out=NormOut(weight, scaled, squares), split=scratch(device))  # fmt: skip
    assert_close(residual, total)
    out = torch.full((rows, m), float("nan"), device=device, dtype=dtype)
    skinny_gemm(scaled, second, out, GemmShape(64, 16, 64), norm_in=NormIn(squares, 3, eps))
    assert_close(out, reference.rms_norm(total, weight, eps).double() @ second.double().T)


def test_gated_product_equals_reference(device: torch.device, dtype: torch.dtype) -> None:
    x, w = torch.randn(7, 160, device=device).to(dtype), (torch.randn(2 * 112, 160, device=device) / 8).to(dtype)
    out = torch.full((7, 112), float("nan"), device=device, dtype=dtype)
    skinny_gemm(x, w, out, GemmShape(64, 16, 64), gated=True)
    assert_close(out, reference.swiglu((x.double() @ w.double().T).float()))


def test_split_without_scratch_is_refused(device: torch.device) -> None:
    x = torch.zeros(1, 64, device=device)
    with pytest.raises(ValueError, match="split"):
        skinny_gemm(x, torch.zeros(64, 64, device=device), x, GemmShape(split_k=2))
