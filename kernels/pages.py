"""Copies between slots of the pool and transfer pages, for KV on its way to or from another worker.

A page holds `[num_layers, n, 2 * num_kv_heads, head_dim]`: token `i` of the page is slot `slots[i]` in every layer. A
fixed number of programs walks over the rows (`programs`, few), so that a transfer leaves the card to compute.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import expect_shape, next_power_of_2

DEFAULT_PROGRAMS = 16
_ROWS = 16


@triton.jit
def _copy_pages(kv_ptr, page_ptr, slots_ptr, n, num_rows, width, layer_stride, slot_stride, ROWS: tl.constexpr,
                BLOCK: tl.constexpr, TO_PAGE: tl.constexpr):  # fmt: skip
    """Grid `(programs,)`. A row is one token in one layer, `width` elements; offsets are 64-bit."""
    cols = tl.arange(0, BLOCK)[None, :]
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < num_rows)[:, None] & (cols < width)
        slot = tl.load(slots_ptr + row % n, mask=row < num_rows, other=0).to(tl.int64)
        in_pool = kv_ptr + ((row // n).to(tl.int64) * layer_stride + slot * slot_stride)[:, None] + cols
        in_page = page_ptr + row.to(tl.int64)[:, None] * width + cols
        if TO_PAGE:
            tl.store(in_page, tl.load(in_pool, mask=inside), mask=inside)
        else:
            tl.store(in_pool, tl.load(in_page, mask=inside), mask=inside)


def gather_page(kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, programs: int = DEFAULT_PROGRAMS) -> None:
    """Write the K and V of `slots`, of all layers, into `page`.

    Args:
        kv: the pool, `[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]`, slots contiguous.
        slots: `[n]` int32 | int64 on kv's device, each < `num_slots`.
        page: `[num_layers, n, 2 * num_kv_heads, head_dim]`, contiguous, of kv's dtype, written.
        programs: thread blocks that copy at most; each takes a multiprocessor while it runs.

    Raises:
        ValueError: a shape, dtype or layout does not fit.
    """
    _launch(kv, slots, page, programs, to_page=True)


def scatter_page(page: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, programs: int = DEFAULT_PROGRAMS) -> None:
    """Write `page` into the `slots` of the pool, in all layers; the reverse of `gather_page`, with the same arguments.

    Raises:
        ValueError: a shape, dtype or layout does not fit.
    """
    _launch(kv, slots, page, programs, to_page=False)


def _launch(kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, programs: int, *, to_page: bool) -> None:
    n = slots.shape[0]
    expect_shape("page", page, (kv.shape[0], n, kv.shape[2], kv.shape[3]))
    if page.dtype != kv.dtype:
        raise ValueError(f"page: expected dtype {kv.dtype}, got {page.dtype}")
    if not page.is_contiguous() or not kv[0, 0].is_contiguous():
        raise ValueError("page and the slots of kv must be contiguous")
    if n == 0:
        return
    width, num_rows = kv.shape[2] * kv.shape[3], kv.shape[0] * n
    _copy_pages[(min(programs, -(-num_rows // _ROWS)),)](
        kv, page, slots, n, num_rows, width, kv.stride(0), kv.stride(1), ROWS=_ROWS,
        BLOCK=next_power_of_2(width), TO_PAGE=to_page, num_warps=8,
    )  # fmt: skip
