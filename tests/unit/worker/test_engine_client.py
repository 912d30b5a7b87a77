"""The engine client against a real child process over the real socket."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.ipc import (
    Abort,
    Admit,
    Admitted,
    Alive,
    AttemptKey,
    CheckIntegrity,
    Ended,
    EngineReady,
    EngineStop,
    Event,
    Integrity,
    StepDone,
    pack_ids,
)
from services.common.request import FinishReason, SamplingParams
from services.worker.engine_client import EngineClient, EngineLostError
from tests.fakes.tokens import fake_output

STOPPED_S = 2.0
"""An idle fake speaks each half second."""
FAKE = (sys.executable, "-m", "tests.fakes.engine", "-")


class Running:
    """A client whose engine is up, and its events as a queue."""

    def __init__(self, *options: str, command: tuple[str, ...] = FAKE) -> None:
        self.client = EngineClient(command=(*command, *options))
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def up(self) -> "Running":
        await self.client.start({})
        self.task = asyncio.create_task(self.client.run(self.events.put_nowait))
        assert isinstance(await self.next(EngineReady), EngineReady)
        return self

    async def next(self, kind: type[Event]) -> Event:
        async with asyncio.timeout(60):
            while True:
                event = await self.events.get()
                if isinstance(event, kind):
                    return event


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    engine = await Running().up()
    yield engine
    assert await engine.client.stop() == 0
    assert engine.task is not None
    await engine.task


def admit(job_id: int, prompt: list[int], max_new_tokens: int) -> Admit:
    stop = EngineStop(max_new_tokens=max_new_tokens)
    return Admit(job_id, AttemptKey("ab" * 16, 0), pack_ids(prompt), SamplingParams(), stop, arrival=0.0)


async def test_a_job_runs_from_admit_to_ended_and_leaves_nothing(running: Running) -> None:
    running.client.send(admit(1, [5, 6, 7], 4))
    await running.next(Admitted)
    tokens: list[int] = []
    finish = None
    while finish is None:
        step = await running.next(StepDone)
        assert isinstance(step, StepDone)
        for output in step.outputs:
            tokens += output.token_ids
            finish = output.finish
    assert tokens == fake_output([5, 6, 7], 4)
    assert finish is FinishReason.LENGTH
    await running.next(Ended)
    running.client.send(CheckIntegrity(9))
    answer = await running.next(Integrity)
    assert isinstance(answer, Integrity)
    assert (answer.token, answer.num_jobs, answer.usage.free_slots) == (9, 0, answer.usage.num_slots)


async def test_abort_ends_a_job_and_an_unknown_one(running: Running) -> None:
    running.client.send(admit(1, [1] * 50, 100_000), Abort(1), Abort(77))
    ended = [await running.next(Ended), await running.next(Ended)]
    assert ended == [Ended(1), Ended(77)]


async def test_a_killed_engine_is_an_error_of_the_worker() -> None:
    engine = await Running().up()
    os.kill(engine.client.pids[0], signal.SIGKILL)
    assert engine.task is not None
    with pytest.raises(EngineLostError, match="status -9"):
        await asyncio.wait_for(engine.task, 60)
    await engine.client.stop()


async def test_a_command_for_an_engine_that_was_killed_is_not_taken_for_an_overflow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = await Running().up()
    (pid,) = engine.client.pids
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)  # noqa: ASYNC251 - the socket hears of it, and the event loop does not
    engine.client.send(Abort(1))
    assert engine.task is not None
    with pytest.raises(EngineLostError, match="status -9"):
        await asyncio.wait_for(engine.task, 60)
    assert "takes no commands" not in caplog.text
    await engine.client.stop()


async def test_an_engine_that_takes_no_commands_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    client = EngineClient(command=(sys.executable, "-c", "import time; time.sleep(600)"))
    await client.start({})
    client.send(Abort(1))
    with pytest.raises(EngineLostError, match="status -9"):
        await asyncio.wait_for(client.run(lambda _: None), 60)
    assert "takes no commands" in caplog.text
    await client.stop()


async def test_an_engine_that_fails_at_start_is_an_error_of_the_worker() -> None:
    client = EngineClient(command=(sys.executable, "-c", "raise SystemExit(3)"))
    await client.start({})
    with pytest.raises(EngineLostError, match="status 3"):
        await asyncio.wait_for(client.run(lambda _: None), 60)
    await client.stop()


async def test_a_rank_that_ends_takes_the_others_along(tmp_path: Path) -> None:
    """Rank 1 ends once all have started; the others would go on for ever."""
    script = """
import json, os, pathlib, sys, time
config = json.loads(sys.stdin.readline())
assert config["num_ranks"] == 3 and config["rendezvous"]
started = pathlib.Path(sys.argv[1])
(started / str(config["rank"])).touch()
while len(os.listdir(started)) < 3:
    time.sleep(0.01)
sys.exit(5) if config["rank"] == 1 else time.sleep(600)
"""
    client = EngineClient(command=(sys.executable, "-c", script, str(tmp_path)))
    await client.start({}, 3)
    assert len(client.pids) == 3
    with pytest.raises(EngineLostError, match="rank 1 of the engine ended with status 5"):
        await asyncio.wait_for(client.run(lambda _: None), 30)
    await asyncio.wait_for(client.stop(), 30)
    assert client.pids == []


async def test_stop_before_the_engine_is_up_ends_it() -> None:
    client = EngineClient(command=(*FAKE, "--load-s", "60"))
    await client.start({})
    await asyncio.wait_for(client.stop(), 30)
    assert client.pids == []


async def test_age_grows_while_the_engine_is_stopped(running: Running) -> None:
    (pid,) = running.client.pids
    while not running.events.empty():
        running.events.get_nowait()
    os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            while running.client.age_s < STOPPED_S:  # noqa: ASYNC110 - time passes without an event
                await asyncio.sleep(0.05)
    finally:
        os.kill(pid, signal.SIGCONT)
    await running.next(Alive)
    assert running.client.age_s < STOPPED_S
