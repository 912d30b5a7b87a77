"""What waits for a client: merged, bounded, and over when it is over (R15)."""

import pytest

from services.common.errors import RequestAbortedError, WorkerFailedError
from services.common.request import Delta, Finish, FinishReason
from services.pd_master.generation import ClientGeneration


class Aborts:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def delta(index: int, choice: int = 0, text: str = "x") -> Delta:
    """One token."""
    return Delta(choice, index, [index], text, text_lengths=(len(text),))


def opened(max_bytes: int = 10_000, stall_s: float = 30.0) -> tuple[ClientGeneration, Aborts]:
    """A generation and its abort."""
    aborts = Aborts()
    return ClientGeneration(aborts, max_bytes, stall_s), aborts


async def test_pending_deltas_come_as_one_for_each_choice() -> None:
    generation, _ = opened()
    for index in range(3):
        generation.push(delta(index))
        generation.push(delta(index, choice=1))
    generation.end(None)
    batches = [batch async for batch in generation]
    assert [[(one.choice, one.token_ids) for one in batch] for batch in batches] == [[(0, [0, 1, 2]), (1, [0, 1, 2])]]


async def test_output_before_an_error_is_read_first() -> None:
    generation, _ = opened()
    generation.push(delta(0))
    generation.end(WorkerFailedError("lost"))
    reader = aiter(generation)
    assert len(await anext(reader)) == 1
    with pytest.raises(WorkerFailedError):
        await anext(reader)


async def test_client_that_leaves_too_much_unread_is_ended_alone() -> None:
    generation, aborts = opened(max_bytes=500)
    for index in range(20):
        generation.push(delta(index))
    assert aborts.count == 1
    with pytest.raises(RequestAbortedError, match="unread"):
        await anext(aiter(generation))


async def test_client_that_reads_nothing_for_too_long_is_ended() -> None:
    generation, aborts = opened(stall_s=-1.0)
    generation.push(delta(0))
    assert aborts.count == 1


async def test_closing_aborts_once_and_only_what_runs() -> None:
    generation, aborts = opened()
    await generation.aclose()
    await generation.aclose()
    assert aborts.count == 1
    ended, aborts = opened()
    ended.end(None)
    await ended.aclose()
    assert aborts.count == 0


async def test_listener_gets_output_at_once_and_the_iteration_what_it_leaves_in_order() -> None:
    generation, _ = opened()
    heard: list[int] = []
    is_full = False

    def listener(one: Delta) -> bool:
        if is_full:
            return False
        heard.extend(one.token_ids)
        return True

    generation.push(delta(0))
    generation.listen(listener)
    generation.push(delta(1))  # behind one that waits for the iteration
    reader = aiter(generation)
    assert [one.token_ids for one in await anext(reader)] == [[0, 1]]
    generation.push(delta(2))
    is_full = True
    generation.push(delta(3))
    is_full = False
    generation.push(delta(4))
    assert heard == [2]
    assert [one.token_ids for one in await anext(reader)] == [[3, 4]]
    last = Delta(0, 5, [5], "x", finish=Finish(FinishReason.STOP, 6), text_lengths=(1,))
    generation.push(last)
    generation.end(None)
    assert [batch async for batch in reader] == [[last]]
    assert heard == [2]
