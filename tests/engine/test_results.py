"""What a step says of the sequences that decode in it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.common import ipc
from services.common.request import FinishReason
from services.engine.decode_group import group_of
from services.engine.rows import Rows
from services.engine.runner import StepResult
from tests.engine.driver import Driver
from tests.engine.tiny import prompt_of


def steps(driver: Driver) -> list[ipc.StepDone]:
    return driver.said(ipc.StepDone)


def test_ordinary_tokens_come_in_columns_and_the_last_one_with_its_reason(llama: Path) -> None:
    driver = Driver(llama)
    long, short = driver.admit(prompt_of(5), 6), driver.admit(prompt_of(6), 3)
    driver.run(long, short)
    apart = [(output.job_id, output.first_index, output.finish) for step in steps(driver) for output in step.others]
    assert apart == [
        (long.job_id, 0, None), (short.job_id, 0, None),  # with their prompts
        (short.job_id, 2, FinishReason.LENGTH), (long.job_id, 5, FinishReason.LENGTH),
    ]  # fmt: skip
    plain = [output for step in steps(driver) for output in step.tokens.outputs()]
    assert len(plain) == 6 + 3 - len(apart)
    assert [len(driver.tokens[admit.job_id, 0]) for admit in (long, short)] == [6, 3]


def test_a_group_notices_who_has_left_and_who_has_come_into_its_row() -> None:
    rows = Rows(3, 8, padding_slot=0)
    both = [rows.take(), rows.take()]
    rows.job_ids[both] = [11, 12]
    group = group_of(np.array(both), rows, [])
    assert group.still_there(rows).tolist() == [True, True]
    rows.give_back(both[1])
    assert group.still_there(rows).tolist() == [True, False]
    rows.job_ids[rows.take()] = 13
    assert group.still_there(rows).tolist() == [True, False]


def test_the_same_group_serves_until_a_sequence_joins_or_leaves(llama: Path) -> None:
    driver = Driver(llama)
    state = driver.engine.state
    driver.turn(driver.admit(prompt_of(3), 4), driver.admit(prompt_of(4), 9))
    groups = []
    while driver.engine.has_work:
        driver.turn()
        groups.append(state.decode_group(state.rows.decoding()))
    assert [len(group.rows) for group in groups] == [2, 2, 1, 1, 1, 1, 1, 0]
    assert len({id(group) for group in groups}) == 3


class Spied:
    """A step's result that calls `spy` when its ids are asked for."""

    def __init__(self, result: StepResult, spy: Callable[[], object]) -> None:
        self._result, self._spy = result, spy

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._result, name)

    def token_ids(self) -> list[int]:
        self._spy()
        return self._result.token_ids()


def spy_on(driver: Driver, monkeypatch: pytest.MonkeyPatch, spy: Callable[[], object]) -> None:
    runner = driver.engine._runner
    launch = runner.launch
    monkeypatch.setattr(runner, "launch", lambda batch: Spied(launch(batch), spy))


def test_what_ends_at_its_length_has_given_back_all_before_its_last_token_is_read(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(llama)
    state = driver.engine.state
    held: list[int] = []
    spy_on(driver, monkeypatch, lambda: held.append(state.usage().held_slots))
    driver.run(driver.admit(prompt_of(9), 1), driver.admit(prompt_of(5), 1))
    assert held == [0]
    held.clear()
    driver.run(long := driver.admit(prompt_of(7), 3))
    assert [slots > 0 for slots in held] == [True, True, False]
    last, ended = driver.events[-2:]
    assert isinstance(last, ipc.StepDone)
    assert last.others[0].finish is FinishReason.LENGTH
    assert last.usage.held_slots == 0
    assert ended == ipc.Ended(long.job_id)
    driver.check()


def test_all_but_the_last_token_stay_cached_of_what_ends_at_its_length(llama: Path) -> None:
    driver = Driver(llama)
    (tokens,) = driver.outputs(driver.admit(prompt_of(6), 4))
    again = driver.admit([*prompt_of(6), *tokens, 1], 1)
    driver.run(again)
    (admitted,) = (each for each in driver.said(ipc.Admitted) if each.job_id == again.job_id)
    assert admitted.cached_tokens == 6 + 3
    driver.check()


def test_a_stop_token_where_the_length_ends_is_still_the_reason(llama: Path) -> None:
    driver = Driver(llama)
    ((token,),) = driver.outputs(driver.admit(prompt_of(6), 1))
    stopped = driver.admit(prompt_of(6), 1, stop_token_ids=(token,))
    driver.run(stopped)
    assert driver.finishes[stopped.job_id, 0] is FinishReason.STOP
    driver.check()


def test_a_step_takes_until_its_ids_are_there_without_the_step_before(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps in flight, each of which the device takes a second for."""
    driver = Driver(llama, pipeline_depth=1)
    now = [100.0]

    def second() -> None:
        now[0] += 1.0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    spy_on(driver, monkeypatch, second)
    driver.run(driver.admit(prompt_of(5), 4))
    assert [step.step_s for step in steps(driver)] == [1.0] * 4
