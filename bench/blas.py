"""Prefill's four products by BLAS library, each held for a while: what the card settles at, not what a burst shows."""

from __future__ import annotations

import time

import torch

from bench.llama_shape import HEADS, HIDDEN, INNER
from bench.timing import call_ms

SHAPES = {"qkv": (HEADS.qkv_width, HIDDEN), "o": (HIDDEN, HIDDEN), "gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}


def main() -> None:
    """Print TFLOP/s by product, library and form."""
    device = torch.device("cuda")
    for tokens in (8192, 4096):
        for name, (n, k) in SHAPES.items():
            x = torch.randn(tokens, k, device=device, dtype=torch.bfloat16)
            w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
            wt = w.t().contiguous()
            out = torch.empty(tokens, n, device=device, dtype=torch.bfloat16)
            flops = 2 * tokens * n * k
            rates = []
            for library in ("cublas", "cublaslt"):
                torch.backends.cuda.preferred_blas_library(library)
                for form, weight in (("nt", w.t()), ("nn", wt)):
                    start = time.monotonic()
                    while time.monotonic() - start < 0.3:
                        ms = call_ms(lambda: torch.mm(x, weight, out=out), calls=10, rounds=3)  # noqa: B023
                    rates.append(f"{library} {form} {flops / ms / 1e9:.0f}")
            print(f"{tokens} x {name:8}", " | ".join(rates), flush=True)


if __name__ == "__main__":
    main()
