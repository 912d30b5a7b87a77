"""The work list of decode attention: which program reads which part of which request's context.

The list is made on the device, once a step, because the lengths live there. One request's context is cut into splits
of equal size; the split size follows from all lengths, so that about `target_items` items come out whatever the skew:
`max(min_split_blocks, ceil(sum of blocks / target_items))` blocks, up to half more where that saves a split. Hence at
most `rows + target_items` items, the bound that the grid is launched with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import dependent, expect_shape, next_power_of_2, release_next, wait_for_previous

ITEM_FIELDS = 8


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """The work list of one step, all int32 and owned by the caller.

    items: `[max_items, 8]`: batch row, first block, number of blocks, index of the request's first item, number of its
        items, tokens that are in the pool, request row, nothing. All that a program has to know, in one place: each
        look-up that depends on another is a trip to memory before its first key.
    num_items: `[1]`.
    max_rows: requests that there is room for.
    """

    items: torch.Tensor
    num_items: torch.Tensor
    max_rows: int
    block_tokens: int
    target_items: int
    min_split_blocks: int = 1

    @staticmethod
    def allocate(
        rows: int, block_tokens: int, target_items: int, device: torch.device, min_split_blocks: int = 1
    ) -> DecodePlan:
        """Return a plan with room for every work list of `rows` requests."""
        max_items = rows + target_items
        return DecodePlan(
            torch.zeros(max_items, ITEM_FIELDS, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
            rows,
            block_tokens,
            target_items,
            min_split_blocks,
        )


@triton.jit
def _decode_plan(context_lens_ptr, table_rows_ptr, items_ptr, num_items_ptr, num_rows, target_items,
                 min_split_blocks, FIELDS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
                 PDL: tl.constexpr):  # fmt: skip
    """Grid `(1,)`."""
    wait_for_previous(PDL)
    rows = tl.arange(0, BLOCK_ROWS)
    release_next(PDL)
    inside = rows < num_rows
    lens = tl.load(context_lens_ptr + rows, mask=inside, other=0)
    table_rows = tl.load(table_rows_ptr + rows, mask=inside, other=0)
    # The newest token is not in the pool yet; whoever holds the last split adds it from registers.
    blocks = (tl.maximum(lens - 1, 0) + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    split = tl.maximum((tl.sum(blocks) + target_items - 1) // target_items, min_split_blocks)
    # To the nearest: a context a little over a split's size is one item, not two that have to be merged.
    splits = tl.where(lens > 0, tl.maximum((blocks + split // 2) // split, 1), 0)
    even = (blocks + splits - 1) // tl.maximum(splits, 1)  # the same number of splits, but of equal size
    splits = tl.where(blocks > 0, (blocks + even - 1) // tl.maximum(even, 1), splits)
    first = tl.cumsum(splits, 0) - splits
    tl.store(num_items_ptr, tl.sum(splits))
    for s in range(tl.max(splits)):
        live = s < splits
        item = items_ptr + (first + s) * FIELDS
        tl.store(item, rows, mask=live)
        tl.store(item + 1, s * even, mask=live)
        tl.store(item + 2, tl.minimum(even, blocks - s * even), mask=live)
        tl.store(item + 3, first, mask=live)
        tl.store(item + 4, splits, mask=live)
        tl.store(item + 5, lens - 1, mask=live)
        tl.store(item + 6, table_rows, mask=live)


def decode_plan(context_lens: torch.Tensor, table_rows: torch.Tensor, plan: DecodePlan, *, pdl: bool = False) -> None:
    """Write the work list for `context_lens [rows]` int32 (newest token included; 0 for a padding row) into `plan`.

    `table_rows`: as in `SlotTable`.

    Raises:
        ValueError: `plan` has another number of rows.
    """
    rows = context_lens.shape[0]
    if plan.max_rows < rows:
        raise ValueError(f"plan: made for {plan.max_rows} rows, got {rows}")
    expect_shape("table_rows", table_rows, (rows,))
    expect_shape("plan.items", plan.items, (None, ITEM_FIELDS))
    _decode_plan[(1,)](
        context_lens, table_rows, plan.items, plan.num_items, rows, plan.target_items,
        plan.min_split_blocks, FIELDS=ITEM_FIELDS, BLOCK_ROWS=next_power_of_2(rows), BLOCK_TOKENS=plan.block_tokens,
        num_warps=4, **dependent(pdl),
    )  # fmt: skip
