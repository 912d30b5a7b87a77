"""The soak's verdict, what it says of the host's memory, and a second of the soak itself."""

import gc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.soak import Soak
from bench.soak_memory import Grown, HostGrowth, Left, host_memory
from bench.soak_record import MOST_HOST_GROWTH_MIB, MOST_UNREACHABLE, Record, violations
from bench.soak_watch import Watch


def record_of(times: list[float], use: list[float]) -> Record:
    return Record(times, use, [f"step {i}" for i in range(len(times))])


def test_a_steady_full_soak_has_no_violation() -> None:
    assert violations(record_of([9.0, 1.0, 1.1, 4.9], [0.1, 0.96, 0.94, 0.97])) == []


@pytest.mark.parametrize(
    ("times", "use", "message"),
    [
        ([1.0, 1.0, 1.0, 5.1], [1.0] * 4, "slow: 5100.0 ms, step 3"),
        ([1.0, 1.0], [0.96, 0.5], "73.0% full"),
        ([1.0, 1.0], [0.5, 0.5], "0.0% full"),
    ],
)
def test_what_the_soak_must_not_show_is_named(times: list[float], use: list[float], message: str) -> None:
    (found,) = violations(record_of(times, use))
    assert message in found


@pytest.mark.parametrize(
    ("host", "device_mib", "message"),
    [
        (Grown(MOST_HOST_GROWTH_MIB + 1), 0.0, "the host's memory grew"),
        (Grown(left=Left({}, MOST_UNREACHABLE + 1, {}, {"m.f": 9})), 0.0, "objects were left in cycles"),
        (Grown(), 0.5, "the device's memory grew by 0.500 MiB"),
    ],
)
def test_memory_that_grows_is_a_violation(host: Grown, device_mib: float, message: str) -> None:
    record = record_of([1.0, 1.0], [1.0, 1.0])
    record.host, record.device_growth_mib = Grown(MOST_HOST_GROWTH_MIB, left=Left({}, MOST_UNREACHABLE)), -1.0
    assert violations(record) == []
    record.host, record.device_growth_mib = host, device_mib
    (found,) = violations(record)
    assert message in found


@pytest.fixture
def uncollected() -> Iterator[None]:
    """As in the engine's process."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Kept:
    """Something that is kept."""


def make_cycle() -> None:
    """A closure that knows itself."""

    def again() -> None:
        again()


def grown() -> Grown:
    """By 500 objects, 300 cycles and a block of 32 MiB."""
    gc.disable()
    before = [Kept()]
    growth = HostGrowth(trace=True)
    kept = [Kept() for _ in range(500)]
    for _ in range(300):
        make_cycle()
    large = torch.ones(32 << 20, dtype=torch.uint8)
    found = growth.end()
    assert len(large) > len(kept) > len(before)
    assert gc.garbage == []
    return found


def test_what_has_come_to_the_host_is_told_by_kind_and_type() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # what other tests gave back would be taken again
        found = fresh.submit(grown).result()
    assert found.left.alive["Kept"] == 500
    assert found.left.made_by == {f"{__name__}.make_cycle.<locals>.again": 300}
    assert found.left.num_unreachable == sum(found.left.unreachable.values()) >= 600
    assert found.kinds["blocks of Python"] > 800
    assert min(found.kinds[kind] for kind in ("resident", "anonymous", "malloc's in use")) > 24
    assert any(Path(__file__).name in line for line in found.traced)


@pytest.mark.usefixtures("uncollected")
def test_watching_leaves_no_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card they were 30 KB a turn: more than all else that a soak kept."""
    zero = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    device = {"num_device_alloc": 3, "reserved_bytes": {"all": zero | {"current": 2 << 20}}}
    host = {"num_host_alloc": 5, "host_alloc_time": {"total": 4000}, "allocated_bytes": zero | {"current": 3 << 20}}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda **_: device)
    monkeypatch.setattr(torch.cuda.memory, "host_memory_stats_as_nested_dict", lambda: host)
    engine: Any = SimpleNamespace(_runner=SimpleNamespace(waiting=SimpleNamespace(seconds=0.002)))
    watch = Watch(engine)
    gc.collect()
    counts = [watch.counts() for _ in range(10)]
    memory = [host_memory() for _ in range(10)]
    assert gc.collect() == 0
    assert counts[0]["MiB of the device taken"] == 2
    assert counts[0]["ms of pinned allocations"] == 4
    assert memory[0]["pinned by torch"] == 3


def test_a_soak_without_a_step_so_far_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    soak = Soak("cpu", 512, seed=3)
    soak._tell(soak._began)
    assert "no step yet" in capsys.readouterr().err


def test_a_second_of_it_leaves_nothing() -> None:
    soak = Soak("cpu", 512, seed=3)
    soak.run(1.0)
    assert soak.record.problems == []
    assert soak.record.times
