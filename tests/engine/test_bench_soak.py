"""The soak's verdict, and a second of the soak itself."""

import pytest

from bench.soak import Record, Soak, violations


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


def test_a_second_of_it_leaves_nothing() -> None:
    soak = Soak("cpu", 512, seed=3)
    soak.run(1.0)
    assert soak.record.problems == []
    assert soak.record.times
