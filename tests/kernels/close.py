"""How near a kernel must come to its reference."""

from __future__ import annotations

import torch

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def assert_close(out: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None) -> None:
    """Fail unless ||out - expected|| <= tolerance * ||expected||, by the dtype of `out`; NaN never passes."""
    limit = TOLERANCES[out.dtype] if tolerance is None else tolerance
    out, expected = out.double(), expected.double()
    error = (out - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error <= limit, f"relative error {error:.3e}, allowed {limit:.0e}"
