"""The soak's verdict, and a second of the soak itself."""

import pytest

from bench.soak import MOST_HOST_GROWTH_MIB, Record, Soak, violations


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
    ("host_mib", "device_mib", "message"),
    [(MOST_HOST_GROWTH_MIB + 1, 0.0, "the host's memory grew"), (0.0, 0.5, "the device's memory grew by 0.500 MiB")],
)
def test_memory_that_grows_is_a_violation(host_mib: float, device_mib: float, message: str) -> None:
    record = record_of([1.0, 1.0], [1.0, 1.0])
    record.host_growth_mib, record.device_growth_mib = MOST_HOST_GROWTH_MIB, -1.0
    assert violations(record) == []
    record.host_growth_mib, record.device_growth_mib = host_mib, device_mib
    (found,) = violations(record)
    assert message in found


def test_a_soak_without_a_step_so_far_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    soak = Soak("cpu", 512, seed=3)
    soak._tell(soak._began)
    assert "no step yet" in capsys.readouterr().err


def test_a_second_of_it_leaves_nothing() -> None:
    soak = Soak("cpu", 512, seed=3)
    soak.run(1.0)
    assert soak.record.problems == []
    assert soak.record.times
