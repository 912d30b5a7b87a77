"""What is run before the first request, so that no request waits for a kernel."""

from __future__ import annotations

import torch

from services.engine.backends.cuda.padded_chunks import sizes_beforehand
from services.engine.backends.cuda.row_masks import MaskBlocks
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.backends.cuda.warm_up import warm_pages, warm_sampling, warm_table
from services.engine.rows import NO_WRITES, Rows

VOCAB = 96


def test_steps_of_all_sizes_are_run_the_largest_first() -> None:
    assert sizes_beforehand(100) == [100, 50, 25, 12, 6, 3, 1]
    assert sizes_beforehand(1) == [1]
    assert sizes_beforehand(1 << 20, least=1024) == [8192, 4096, 2048, 1024], "none that takes long"


def test_it_changes_nothing_that_is_read(device: torch.device) -> None:
    staging = Staging(4096, device)
    table = DeviceTable(Rows(2, 8, padding_slot=5), 5, device)
    pool = torch.randn(2, 6, 4, 8, device=device)
    before, entries = pool.clone(), table.table.clone()
    warm_table(table, staging)
    warm_sampling(VOCAB, torch.bfloat16, staging, MaskBlocks(2, VOCAB, device), device)
    warm_pages(pool, padding_slot=5, num_heads=(2, 1))
    assert torch.equal(pool, before)
    assert torch.equal(table.table, entries)
    assert not table.next_ids.any()
    table.next_ids.fill_(7)
    staging.begin()
    table.send(NO_WRITES, staging)
    assert (table.next_ids == 7).all(), "the next step writes nothing of it"
