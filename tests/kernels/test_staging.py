"""What a step sends to the device and takes from it: changes of the slot table, and ids, in blocks used again."""

from __future__ import annotations

import numpy as np
import torch

from services.engine.backends.cuda.result import HostIds
from services.engine.backends.cuda.slot_table import DeviceTable
from services.engine.backends.cuda.staging import Staging
from services.engine.rows import Rows

PADDING = 99


def test_the_device_table_follows_the_hosts(device: torch.device) -> None:
    rows, staging = Rows(4, 48, PADDING), Staging(4096, device)
    table = DeviceTable(rows, PADDING, device)
    random = np.random.default_rng(1)
    taken = [rows.take() for _ in range(3)]
    for step in range(6):
        for row in taken[: 1 + step % 3]:
            start = int(random.integers(0, int(rows.capacity[row]) + 1))
            rows.write(row, start, random.integers(0, 90, random.integers(1, 12)).astype(np.int32))
        rows.extend(np.array(taken), random.integers(0, 90, (3, 4)).astype(np.int32))
        if step == 3:
            rows.give_back(taken[0])
            assert rows.take() == taken[0]
        staging.begin()
        staging.put(np.zeros(5, np.int32))
        table.send(rows.take_writes(), staging)
        for row in taken:
            n = int(rows.capacity[row])
            assert table.table[row, :n].tolist() == rows.table[row, :n].tolist()


def test_what_is_packed_first_lies_where_it_was_and_the_rest_follows(device: torch.device) -> None:
    staging = Staging(256, device)
    addresses = set()
    for turn in range(5):
        staging.begin()
        first = staging.put(np.full((2, 8), turn, np.int32))
        second = staging.put(np.arange(turn + 1, dtype=np.int32))
        alone = staging.put(np.full(300, turn, np.int32))
        staging.send()
        addresses.add(first.data_ptr())
        assert first.tolist() == [[turn] * 8] * 2
        assert second.tolist() == list(range(turn + 1))
        assert alone.tolist() == [turn] * 300
    assert len(addresses) == 1


def test_what_is_read_first_may_be_sent_before_the_rest(device: torch.device) -> None:
    staging = Staging(512, device)
    for turn in range(5):
        staging.begin()
        first = staging.put(np.full(40, turn, np.int32))
        staging.send()
        rest = staging.put_all([np.arange(n, dtype=np.int32) + turn for n in (3, 0, 64, 33)])
        late = staging.put(np.full((2, 4), -turn, np.int32))
        staging.send()
        alone = staging.put_all([np.full(n, turn, np.int32) for n in (300, 2)])
        staging.send()
        assert first.tolist() == [turn] * 40
        assert [each.tolist() for each in rest] == [list(range(turn, turn + n)) for n in (3, 0, 64, 33)]
        assert late.tolist() == [[-turn] * 4] * 2
        assert [each.tolist() for each in alone] == [[turn] * 300, [turn] * 2]


def test_ids_stay_what_they_were_however_late_they_are_read(device: torch.device) -> None:
    """Blocks take turns, and a grammar may ask for the ids of a step long past."""
    blocks, steps = HostIds(8, device), range(11)
    fetched = []
    for step in steps:
        ids = torch.arange(step, step + 1 + step % 8, dtype=torch.int32, device=device)
        blocks.take(len(ids))[: len(ids)].copy_(ids, non_blocking=True)
        fetched.append(blocks.launched(len(ids)))
    fetched[-1][1].wait()
    for step in reversed(steps):
        assert fetched[step][0].read() == list(range(step, step + 1 + step % 8))
