"""Copies between slots of the pool and transfer pages, for KV on its way to or from another worker.

A page holds `[num_layers, n, 2 * h, head_dim]`: token `i` of the page is slot `slots[i]` in every layer. `h` is the
pool's number of KV heads, or fewer where the rank on the other side holds only some of them: heads `first_head` and the
next. A fixed number of programs walks over the rows (`programs`, few), so that a transfer leaves the card to compute.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.launch import expect_shape, next_power_of_2

DEFAULT_PROGRAMS = 16
_TILE_BYTES = 64 << 10
"""On its way through a program at a time: a quarter of its registers. Twice as much is no faster."""
_MAX_ROWS = 256
"""Of a tile: more of them, which are narrow then, need more registers for addresses than their elements do."""


# Not compiled anew for one, or for a multiple of 16, of them: pages hold any number of tokens.
@triton.jit(do_not_specialize=["n", "num_rows"], do_not_specialize_on_alignment=["slots_ptr"])
def _copy_pages(kv_ptr, page_ptr, slots_ptr, n, num_rows, width, layer_stride, slot_stride, half_stride, layer_step,
                ROWS: tl.constexpr, BLOCK: tl.constexpr, TO_PAGE: tl.constexpr):  # fmt: skip
    """Grid `(programs,)`. A row is K or V of one token in one layer, `width` elements; offsets are 64-bit."""
    cols = tl.arange(0, BLOCK)[None, :]
    for start in range(tl.program_id(0) * ROWS, num_rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < num_rows)[:, None] & (cols < width)
        layer, in_layer = (row // (2 * n)).to(tl.int64), row % (2 * n)
        slot = tl.load(slots_ptr + in_layer // 2, mask=row < num_rows, other=0).to(tl.int64)
        in_pool = kv_ptr + (layer * layer_stride + slot * slot_stride + in_layer % 2 * half_stride)[:, None] + cols
        in_page = page_ptr + (layer * layer_step + in_layer.to(tl.int64) * width)[:, None] + cols
        if TO_PAGE:
            tl.store(in_page, tl.load(in_pool, mask=inside), mask=inside)
        else:
            tl.store(in_pool, tl.load(in_page, mask=inside), mask=inside)


def gather_page(
    kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, first_head: int = 0, programs: int = DEFAULT_PROGRAMS
) -> None:
    """Write the K and V of `slots`, of all layers, into `page`.

    Args:
        kv: the pool, `[num_layers, num_slots + 1, 2 * num_kv_heads, head_dim]`, slots contiguous.
        slots: `[n]` int32 | int64 on kv's device, each < `num_slots`.
        page: `[num_layers, n, 2 * h, head_dim]` of kv's dtype, each layer contiguous, written.
        first_head: the first of the pool's heads that the page holds.
        programs: thread blocks that copy at most; each takes a multiprocessor while it runs.

    Raises:
        ValueError: a shape, dtype or layout does not fit.
    """
    _launch(kv, slots, page, first_head, programs, to_page=True)


def scatter_page(
    page: torch.Tensor, slots: torch.Tensor, kv: torch.Tensor, first_head: int = 0, programs: int = DEFAULT_PROGRAMS
) -> None:
    """Write `page` into the `slots` of the pool, in all layers; the reverse of `gather_page`, with the same arguments.

    Raises:
        ValueError: a shape, dtype or layout does not fit.
    """
    _launch(kv, slots, page, first_head, programs, to_page=False)


def _launch(
    kv: torch.Tensor, slots: torch.Tensor, page: torch.Tensor, first_head: int, programs: int, *, to_page: bool
) -> None:
    n, num_heads = slots.shape[0], page.shape[2] // 2
    expect_shape("page", page, (kv.shape[0], n, 2 * num_heads, kv.shape[3]))
    if page.dtype != kv.dtype:
        raise ValueError(f"page: expected dtype {kv.dtype}, got {page.dtype}")
    if not 0 <= first_head <= kv.shape[2] // 2 - num_heads:
        raise ValueError(f"page: {num_heads} heads from {first_head}, the pool has {kv.shape[2] // 2}")
    if n == 0:
        return
    if not page[0].is_contiguous() or not kv[0, 0].is_contiguous():
        raise ValueError("the layers of page and the slots of kv must be contiguous")
    width, num_rows = num_heads * kv.shape[3], 2 * kv.shape[0] * n
    block = next_power_of_2(width)
    rows = max(1, min(_MAX_ROWS, _TILE_BYTES // (block * kv.element_size())))
    _copy_pages[(min(programs, -(-num_rows // rows)),)](
        kv[:, :, first_head:], page, slots, n, num_rows, width, kv.stride(0), kv.stride(1),
        kv.shape[2] // 2 * kv.shape[3], page.stride(0), ROWS=rows, BLOCK=block, TO_PAGE=to_page, num_warps=16,
    )  # fmt: skip
