"""What a master's session writes when its stream is quick, slow, resumed or closed."""

import asyncio
from dataclasses import dataclass, field

import pytest

from services.common.ipc import AttemptKey, SequenceOutput
from services.common.messages import (
    PROTOCOL,
    CacheChanges,
    Deltas,
    Heartbeat,
    Load,
    MasterHello,
    MasterRef,
    Prefilling,
    Queued,
    WorkerMessage,
)
from services.common.metrics import WorkerMetrics
from services.common.request import Delta, Finish, FinishReason
from services.worker.cache_account import CacheJournal
from services.worker.outbox import MAX_WAITING, Outbox
from services.worker.outputs import Taken
from services.worker.session import MasterSession
from services.worker.session_errors import LeavingError, SessionOverflowError

KEY = AttemptKey("ab" * 16, 1)


@dataclass
class Log:
    """An output log whose text is of no interest."""

    output_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def take(self, output: SequenceOutput) -> Taken | None:
        self.output_ids += output.token_ids
        return Taken.GOES_ON

    def since(self, index: int) -> Delta | None:
        if index >= len(self.output_ids) and self.finish is None:
            return None
        return Delta(0, index, self.output_ids[index:], "", finish=self.finish)


def session(*, in_columns: bool = False) -> MasterSession:
    metrics = WorkerMetrics(has_prefill=False, has_decode=True)
    hello = MasterHello(PROTOCOL, MasterRef("m", "1"), [], reads_columns=in_columns)
    return MasterSession(hello, metrics.sessions, CacheJournal())


async def written(one: MasterSession) -> list[WorkerMessage]:
    """All that waits, and then the end."""
    one.outbox.close(LeavingError("the test ends"))
    return [message async for batch in one.outbox.batches() for message in batch]


def deltas(messages: list[WorkerMessage]) -> list[list[tuple[int, list[int], bool]]]:
    return [
        [(one.delta.first_index, one.delta.token_ids, one.delta.finish is not None) for one in message.deltas]
        for message in messages
        if isinstance(message, Deltas)
    ]


async def test_events_come_in_order_and_before_the_output() -> None:
    one, log = session(), Log([7])
    one.follow(KEY, 0, log, 0)
    one.outbox.say(Queued(KEY), Queued(AttemptKey("cd" * 16, 1)))
    messages = await written(one)
    assert [type(message) for message in messages] == [Queued, Queued, Deltas]


async def test_output_is_written_as_its_master_reads_it() -> None:
    for in_columns in (False, True):
        one = session(in_columns=in_columns)
        one.follow(KEY, 0, Log([7]), 0)
        assert [frame.in_columns for frame in await written(one) if isinstance(frame, Deltas)] == [in_columns]


async def test_a_slow_stream_gets_only_the_last_heartbeat() -> None:
    one = session()
    for age_s in (1.0, 2.0, 3.0):
        one.beat(Heartbeat(Load(), age_s, ready=True, draining=False, proven=[], held=[]))
    heartbeat, account = await written(one)
    assert isinstance(heartbeat, Heartbeat)
    assert account == CacheChanges(1, 0, [], [])
    assert heartbeat.engine_age_s == 3.0


async def test_a_slow_stream_gets_one_merged_delta() -> None:
    one, log = session(), Log()
    one.follow(KEY, 0, log, 0)
    for token in range(5):
        log.output_ids.append(token)
        one.grown(KEY, 0)
    assert deltas(await written(one)) == [[(0, [0, 1, 2, 3, 4], False)]]


async def test_a_quick_stream_gets_each_token_once_and_the_finish_once() -> None:
    one, log = session(), Log()
    one.follow(KEY, 0, log, 0)
    stream = one.outbox.batches()
    for token in range(3):
        log.output_ids.append(token)
        if token == 2:
            log.finish = Finish(FinishReason.LENGTH, 3)
        one.grown(KEY, 0)
        assert deltas(await anext(stream)) == [[(token, [token], token == 2)]]
    one.grown(KEY, 0)
    assert await written(one) == []


async def test_a_resumed_session_starts_at_the_index_the_master_names() -> None:
    one, log = session(), Log([1, 2, 3, 4])
    one.follow(KEY, 0, log, 3)
    assert deltas(await written(one)) == [[(3, [4], False)]]


async def test_a_finish_alone_is_sent_again_when_only_it_was_lost() -> None:
    one, log = session(), Log([1, 2], Finish(FinishReason.STOP, 2))
    one.follow(KEY, 0, log, 2)
    assert deltas(await written(one)) == [[(2, [], True)]]


async def test_a_forgotten_attempt_sends_nothing() -> None:
    one, log = session(), Log([1])
    one.follow(KEY, 0, log, 0)
    one.forget(KEY, (0,))
    one.grown(KEY, 0)
    assert await written(one) == []


async def test_all_that_waits_is_written_before_the_end() -> None:
    outbox: Outbox[int] = Outbox("test")
    outbox.say(1, 2)
    outbox.close(LeavingError("first"))
    outbox.close(LeavingError("second"))
    assert [batch async for batch in outbox.batches()] == [[1, 2]]
    assert outbox.end is not None
    assert outbox.end.message == "first"


async def test_a_reader_that_never_comes_ends_the_stream() -> None:
    outbox: Outbox[int] = Outbox("test")
    outbox.say(*range(MAX_WAITING + 1))
    with pytest.raises(SessionOverflowError):
        await asyncio.wait_for(anext(outbox.batches()), 30)


async def test_what_is_said_at_once_is_written_at_once() -> None:
    outbox: Outbox[int] = Outbox("test")
    batches = outbox.batches()
    for said in ([1], [2, 3]):
        for message in said:
            outbox.say(message)
        assert await asyncio.wait_for(anext(batches), 30) == said


async def test_what_can_wait_goes_along_with_what_cannot_in_order() -> None:
    one = session()
    batches = one.outbox.batches()
    written = asyncio.ensure_future(anext(batches))
    await asyncio.sleep(0)
    one.event(Queued(KEY))
    await asyncio.sleep(0)
    assert not written.done()
    one.event(Prefilling(KEY, 0))
    assert await asyncio.wait_for(written, 30) == [Queued(KEY), Prefilling(KEY, 0)]


async def test_what_can_wait_is_written_though_nothing_else_comes() -> None:
    one = session()
    batches = one.outbox.batches()
    for _ in range(2):
        written = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        one.event(Queued(KEY))
        assert await asyncio.wait_for(written, 30) == [Queued(KEY)]
