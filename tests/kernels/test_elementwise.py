"""Norm, embedding, gated activation: each against its reference."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.embedding import embedding
from kernels.rms_norm import rms_norm
from kernels.skinny_gemm import NormOut
from kernels.swiglu import swiglu
from tests.kernels.close import assert_close


@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 576), (2, 4096)])
def test_norm_equals_reference(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> None:
    x = torch.randn(rows, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, out, 1e-5)
    assert_close(out, reference.rms_norm(x, weight, 1e-5))


def test_norm_adds_and_replaces_the_residual(device: torch.device, dtype: torch.dtype) -> None:
    x, residual = (torch.randn(5, 192, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(192, device=device).to(dtype)
    total = x.float() + residual.float()
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, out, 1e-5, residual=residual)
    assert_close(residual, total)  # to rounding: the interpreter truncates to bfloat16
    assert_close(out, reference.rms_norm(total, weight, 1e-5))


def test_norm_adds_up_a_product_in_parts(device: torch.device) -> None:
    parts, residual = torch.randn(3, 5, 192, device=device), torch.randn(5, 192, device=device)
    weight, out = torch.randn(192, device=device), torch.full((5, 192), float("nan"), device=device)
    total = residual + parts.sum(0)
    rms_norm(parts, weight, out, 1e-5, residual=residual)
    assert_close(residual, total)
    assert_close(out, reference.rms_norm(total, weight, 1e-5))


def test_norm_names_the_argument_that_does_not_fit(device: torch.device) -> None:
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"weight: expected shape \(8,\), got \(7,\)"):
        rms_norm(x, torch.zeros(7, device=device), x, 1e-5)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1536), (2, 2049)])
def test_gated_activation_equals_reference(device: torch.device, dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = torch.randn(rows, 2 * width, device=device).to(dtype)
    out = torch.full((rows, width), float("nan"), device=device, dtype=dtype)
    swiglu(gate_up, out)
    assert_close(out, reference.swiglu(gate_up))


def test_embedding_leaves_what_the_first_norm_needs(device: torch.device, dtype: torch.dtype) -> None:
    table = torch.randn(11, 96, device=device).to(dtype)
    weight = torch.randn(96, device=device).to(dtype)
    ids = torch.tensor([10, 0, 3], dtype=torch.int32, device=device)
    out, scaled = (torch.full((3, 96), float("nan"), device=device, dtype=dtype) for _ in range(2))
    squares = torch.full((4, 3), float("nan"), device=device)
    embedding(ids, table, out, NormOut(weight, scaled, squares), num_tiles=4)
    assert torch.equal(out, table[ids.long()])
    assert_close(scaled, out.float() * weight.float())
    assert_close(squares.sum(0), out.float().pow(2).sum(1))
