"""What the card at hand can do: the ceilings that other figures are set beside, measured in the same run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.timing import call_ms


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Read and copy bandwidth (copies count read + written bytes), and the bf16 matmul rate in a burst."""

    read_tb_s: float
    copy_tb_s: float
    matmul_tflop_s: float


def measure(device: torch.device) -> Ceilings:
    """Measure in about a second, on random data."""
    x = torch.randn(1 << 30, device=device, dtype=torch.bfloat16).view(torch.int32).view(1 << 14, -1)
    out = torch.empty_like(x)
    copy = call_ms(lambda: out.copy_(x))
    read = call_ms(lambda: x.amax(dim=1))
    n = 8192
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    matmul = call_ms(lambda: torch.mm(a, b, out=c), calls=3, rounds=5)
    return Ceilings(x.nbytes / read / 1e9, 2 * x.nbytes / copy / 1e9, 2 * n**3 / matmul / 1e9)


if __name__ == "__main__":
    print(measure(torch.device("cuda")))
