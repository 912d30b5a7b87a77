"""The device, or a launch on the CPU, waits for a count that the host raises later."""

from __future__ import annotations

from threading import Thread

import pytest
import torch

from services.engine.backends.cuda.clock import Mark
from services.engine.backends.cuda.host_flag import HostFlag
from tests.kernels.conftest import HAS_CARD


@pytest.mark.parametrize("count", [1, 2**31 - 1, 2**32, 2**33 + 5])
def test_what_is_launched_behind_a_hold_waits_for_its_count(count: int, device: torch.device) -> None:
    flag, values = HostFlag(device), torch.zeros(4, device=device)
    flag.raise_to(count - 1)
    aside = torch.cuda.Stream(device) if HAS_CARD else None  # to make one beside a hold may wait for the hold

    def launch() -> None:
        values.zero_()  # a thread must have launched something before the driver knows which device it means
        flag.hold(count - 1)
        flag.hold(count)
        values.fill_(1)

    thread = Thread(target=launch)
    thread.start()
    try:
        thread.join(None if HAS_CARD else 0.01)
        with torch.cuda.stream(aside):
            assert values.tolist() == [0] * 4, "launched or not, it has not run"
    finally:
        flag.raise_to(count)
    thread.join()
    Mark(device).wait()
    assert values.tolist() == [1] * 4


def test_a_count_that_has_been_passed_holds_nothing(device: torch.device) -> None:
    flag, values = HostFlag(device), torch.zeros(4, device=device)
    flag.raise_to(7)
    for count in (3, 7):
        flag.hold(count)
    values.fill_(1)
    Mark(device).wait()
    assert values.tolist() == [1] * 4
