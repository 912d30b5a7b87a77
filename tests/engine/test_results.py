"""What a step says of the sequences that decode in it."""

from pathlib import Path

import numpy as np

from services.common import ipc
from services.common.request import FinishReason
from services.engine.decode_group import group_of
from services.engine.rows import Rows
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
