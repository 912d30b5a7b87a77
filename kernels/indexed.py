"""Integers picked, placed and sent: next ids by request row, writes into the slot table, a step's rows and its ids.

What goes between host and device goes by kernels, to and from pinned memory: between two steps the copy engine would
take its turn, and the card stand still for twice as long.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, release_next, wait_for_previous

_BLOCK = 256
_COPY_BLOCK = 1024


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


@triton.jit(do_not_specialize=["n"])
def _copy_ints(source_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Grid `(cdiv(n, BLOCK),)`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(source_ptr + i, mask=i < n), mask=i < n)


@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["ids_ptr", "rows_ptr", "next_ids_ptr"])
def _publish_ids(ids_ptr, rows_ptr, next_ids_ptr, address_ptr, n, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Grid `(cdiv(n, BLOCK),)`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    rows = tl.load(rows_ptr + i, mask=inside, other=0)
    host_ptr = tl.load(address_ptr).to(tl.pointer_type(tl.int32))
    wait_for_previous(PDL)
    release_next(PDL)
    ids = tl.load(ids_ptr + i, mask=inside)
    tl.store(next_ids_ptr + rows, ids, mask=inside)
    tl.store(host_ptr + i, ids, mask=inside)


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


def copy_ints(source: torch.Tensor, out: torch.Tensor) -> None:
    """Copy int32 `source [n]`, on the device or in pinned memory, to `out [n]`.

    Raises:
        ValueError: the lengths differ.
    """
    n = out.shape[0]
    expect_shape("source", source, (n,))
    _copy_ints[(triton.cdiv(n, _COPY_BLOCK),)](source, out, n, BLOCK=_COPY_BLOCK, num_warps=4)


def publish_ids(
    ids: torch.Tensor, rows: torch.Tensor, next_ids: torch.Tensor, address: torch.Tensor, *, pdl: bool = False
) -> None:
    """Write `ids [n]` to `next_ids[rows]` and to the host.

    Args:
        ids, rows, next_ids: int32.
        address: `[1]` int64, written two kernels ago or earlier: of pinned memory for `n` int32.

    Raises:
        ValueError: the lengths differ.
    """
    n = rows.shape[0]
    expect_shape("ids", ids, (n,))
    _publish_ids[(triton.cdiv(n, _BLOCK),)](
        ids, rows, next_ids, address, n, BLOCK=_BLOCK, num_warps=1, **dependent(pdl)
    )


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
