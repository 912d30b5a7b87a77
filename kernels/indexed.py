"""Integers picked and placed by index: next ids by request row, writes into the slot table."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, release_next, wait_for_previous

_BLOCK = 256


# Not compiled anew for one, or for a multiple of 16, of them: steps have any number, at any address.
@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["source_ptr", "index_ptr", "out_ptr"])
def _indexed(source_ptr, index_ptr, out_ptr, n, GATHER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Grid `(cdiv(n, BLOCK),)`; offsets are 64-bit."""
    wait_for_previous(PDL)
    release_next(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    index = tl.load(index_ptr + i, mask=inside, other=0).to(tl.int64)
    if GATHER:
        tl.store(out_ptr + i, tl.load(source_ptr + index, mask=inside), mask=inside)
    else:
        tl.store(out_ptr + index, tl.load(source_ptr + i, mask=inside), mask=inside)


def gather_ints(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """Write `source[index]` into `out`.

    Args:
        source: int32, contiguous, any shape, indexed flat.
        index: `[n]` int32 | int64.
        out: `[n]` int32, written.

    Raises:
        ValueError: a shape does not fit.
    """
    _launch(source, index, out, out, gather=True, pdl=pdl)


def scatter_ints(values: torch.Tensor, index: torch.Tensor, out: torch.Tensor, *, pdl: bool = False) -> None:
    """Write `values [n]` to `out[index]`, flat; where an index comes twice, either value may stay. See `gather_ints`.

    Raises:
        ValueError: a shape does not fit.
    """
    _launch(values, index, out, values, gather=False, pdl=pdl)


def _launch(
    source: torch.Tensor, index: torch.Tensor, out: torch.Tensor, listed: torch.Tensor, *, gather: bool, pdl: bool
) -> None:
    n = index.shape[0]
    expect_shape("index", index, (listed.shape[0],))
    if n == 0:
        return
    _indexed[(triton.cdiv(n, _BLOCK),)](
        source, index, out, n, GATHER=gather, BLOCK=_BLOCK, num_warps=1, **dependent(pdl)
    )
