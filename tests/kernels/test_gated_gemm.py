"""The product and its gated activation in one kernel against plain torch. Gluon has no interpreter: card only."""

from __future__ import annotations

import pytest
import torch

from kernels import reference
from tests.kernels.close import assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper card"
    ),
]


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width", "k"), [(1, 64, 64), (77, 136, 520), (129, 1000, 72), (1030, 2048, 1024)])
def test_gated_product_equals_reference(
    device: torch.device, dtype: torch.dtype, rows: int, width: int, k: int, stages: int
) -> None:
    """Less than a tile, odd in all directions, more tiles than programs."""
    from kernels.gated_gemm import GatedShape, gated_gemm

    x, w = torch.randn(rows, k, device=device).to(dtype), torch.randn(2 * width, k, device=device).to(dtype)
    out = torch.full((rows, width), float("nan"), device=device, dtype=dtype)
    gated_gemm(x, w, out, GatedShape(stages=stages))
    assert_close(out, reference.swiglu((x.double() @ w.double().T).float()))


def test_the_argument_that_does_not_fit_is_named(device: torch.device) -> None:
    from kernels.gated_gemm import gated_gemm

    x, w, out = (torch.zeros(shape, device=device, dtype=torch.bfloat16) for shape in ((4, 32), (48, 32), (4, 16)))
    with pytest.raises(ValueError, match=r"w: expected shape \(32, None\), got \(48, 32\)"):
        gated_gemm(x, w, out)
