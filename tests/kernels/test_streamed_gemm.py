"""The Hopper product against plain torch, with and without dependent launch. Gluon has no interpreter: card only."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from kernels.skinny_gemm import NormIn, NormOut, SplitSpace
from tests.kernels.close import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper card"
    ),
]
BF16 = torch.bfloat16


def scratch(device: torch.device) -> SplitSpace:
    return SplitSpace(torch.full((1 << 19,), float("nan"), device=device),
                      torch.zeros(64, dtype=torch.int32, device=device))  # fmt: skip


@pytest.mark.parametrize("pdl", [False, True])
@pytest.mark.parametrize(
    ("rows", "n", "k", "shape"),
    [
        (1, 64, 64, (64, 16, 64, 1, 4)),
        (3, 100, 192, (64, 16, 64, 1, 2)),
        (17, 200, 1152, (64, 16, 128, 2, 3)),
        (33, 192, 576, (128, 64, 64, 2, 3)),
        (70, 256, 2048, (64, 64, 128, 4, 3)),
    ],
)
def test_product_equals_reference(
    device: torch.device, rows: int, n: int, k: int, shape: tuple[int, ...], pdl: bool
) -> None:
    from kernels.streamed_gemm import StreamShape, streamed_gemm

    x, w = torch.randn(rows, k, device=device).to(BF16), torch.randn(n, k, device=device).to(BF16)
    bias = torch.randn(n, device=device).to(BF16)
    out = torch.full((rows, n), float("nan"), device=device, dtype=BF16)
    space = scratch(device)
    for _ in range(3):
        streamed_gemm(x, w, out, StreamShape(*shape), bias=bias, split=space, pdl=pdl)
    assert_close(out, x.double() @ w.double().T + bias.double())
    assert space.arrived.sum() == 0


@pytest.mark.parametrize("pdl", [False, True])
def test_residual_and_norm_edges_chain_into_a_gated_product(device: torch.device, pdl: bool) -> None:
    from kernels.streamed_gemm import StreamShape, streamed_gemm

    rows, k, n, m, eps = 5, 512, 1024, 320, 1e-5
    x, w = torch.randn(rows, k, device=device).to(BF16), (torch.randn(n, k, device=device) / 16).to(BF16)
    residual, weight = torch.randn(rows, n, device=device).to(BF16), torch.randn(n, device=device).to(BF16)
    second = (torch.randn(2 * m, n, device=device) / 16).to(BF16)
    total = residual.double() + x.double() @ w.double().T
    scaled = torch.full((rows, n), float("nan"), device=device, dtype=BF16)
    squares = torch.full((16, rows), float("nan"), device=device)
    out = torch.full((rows, m), float("nan"), device=device, dtype=BF16)
    streamed_gemm(x, w, residual, StreamShape(64, 16, 128, 2, 3), residual=residual,
                  norm_out=NormOut(weight, scaled, squares), split=scratch(device), pdl=pdl)  # fmt: skip
    streamed_gemm(scaled, second, out, StreamShape(64, 16, 64, 1, 4), gated=True, norm_in=NormIn(squares, 16, eps),
                  pdl=pdl)  # fmt: skip
    assert_close(residual, total)
    normed = reference.rms_norm(total, weight, eps).double()
    assert_close(out, reference.swiglu((normed @ second.double().T).float()))
