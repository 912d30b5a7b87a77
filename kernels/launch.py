"""What every wrapper needs to launch its kernel: dependent launch, shape checks, powers of two."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

INTERPRETED = bool(triton.knobs.runtime.interpret)
_UPCAST = tl.constexpr(INTERPRETED)
LOG2_E = 1.4426950408889634
_HOPPER = 9
"""Major compute capability."""
MIN_BLOCK_D = 16
"""The least depth of a product on tensor cores; smaller heads are padded to it."""


def dependent(pdl: bool) -> dict[str, bool]:
    """Return the launch arguments of a kernel that may start before the one in front of it has ended.

    Programmatic dependent launch came with Hopper's hardware; before it and under the interpreter it is left out.
    """
    if pdl and not INTERPRETED and _has_dependent_launch():
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


def is_hopper() -> bool:
    """Whether the current device is of compute capability 9: not under the interpreter."""
    return not INTERPRETED and _major_capability() == _HOPPER


def _has_dependent_launch() -> bool:
    return _major_capability() >= _HOPPER


@cache
def _major_capability() -> int:
    target = triton.runtime.driver.active.get_current_target()
    return int(target.arch) // 10 if target.backend == "cuda" else 0


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait until the kernel in front has ended and its writes are visible.

    Comes before any global write and any read of what the kernel in front writes. A kernel releases the next one only
    after this wait: so what was written two kernels ago may be read before it.
    """
    if PDL:
        gdc_wait()


@triton.jit
def release_next(PDL: tl.constexpr):
    """Let the next kernel start beside this one's end.

    It takes what room the card has left and waits there, with what it may load before its wait already under way.
    """
    if PDL:
        gdc_launch_dependents()


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return `acc + a @ b` in float32; widened first under the interpreter, which multiplies bfloat16 as integers."""
    if _UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


def expect_shape(name: str, tensor: torch.Tensor, expected: tuple[int | None, ...]) -> None:
    """Raise ValueError unless `tensor` has the expected dimensions (None stands for any)."""
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected) and all(e is None or s == e for s, e in zip(shape, expected, strict=True))
    if not fits:
        raise ValueError(f"{name}: expected shape {expected}, got {shape}")


def expect_rows_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless the last dimension of `tensor` is contiguous."""
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name}: expected stride 1 in the last dimension, got {tensor.stride(-1)}")


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()
