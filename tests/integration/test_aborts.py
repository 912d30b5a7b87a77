"""Every early end of a request, in each state of its life: within a second both workers keep nothing of it."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from sluice.v1 import gateway_pb2, gateway_pb2_grpc
from tests.integration.client import stream
from tests.integration.cluster import Cluster, Process
from tests.integration.leaks import wait_nothing_left
from tests.integration.oracle import Oracle
from tests.integration.prompts import LONG

WITHIN_S = 1.0
"""Less than reconciliation takes to find what was not ended: that is asked for twice, a second apart."""
ANSWERS = 8
"""So many short answers, one after the other, take a second at most where nothing else runs. On a slower machine the
end of a request may take as long as they would there."""
TRIES = 8
"""A machine that stands still makes one end late; none makes all of them late."""
FOREVER = 2000
"""Output tokens: none of these requests would end within the test."""
REACHED_S = 100.0
POLL_S = 0.02


@pytest.fixture(scope="module")
def cluster(model_dir: Path, log_dir: Path) -> Iterator[Cluster]:
    """1P1D where two requests at a time run, and a long prompt takes many steps."""
    logs = log_dir / "aborts"
    logs.mkdir()
    options = ["--chunk-tokens", "32", "--max-running-requests", "2", "--no-prefix-cache"]
    with Cluster(model_dir, logs, worker_options=options) as running:
        yield running


@dataclass(frozen=True)
class State:
    """How a request comes into one of the gateway's stages and stays there."""

    num_tokens: int
    """Length of the prompt."""
    crowd: int
    """Requests at once; the last of them are in the stage."""
    deadline_s: float
    """Long enough to come into the stage on most machines, short enough to end in it."""
    halvings: int = 0
    """Of the prompt, one more a try: a frozen engine is given up after five seconds, in which a slow machine computes
    few tokens, and a fast one is met only in long prompts."""

    def tokens(self, number: int) -> int:
        """The prompt's length in that try."""
        return self.num_tokens >> number % (self.halvings + 1)


STATES = {
    "queued": State(num_tokens=250, crowd=8, deadline_s=3.0),
    "prefilling": State(num_tokens=6000, crowd=1, deadline_s=2.0),
    "transferring": State(num_tokens=320, crowd=1, deadline_s=4.0, halvings=3),
    "decoding": State(num_tokens=120, crowd=1, deadline_s=3.0),
}


async def over_http(cluster: Cluster, prompt: list[int], _: float) -> None:
    """A stream; cancelling the task closes the connection, as a client that goes away does."""
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        await stream(client, prompt, FOREVER, ignore_eos=True)


async def over_grpc(cluster: Cluster, prompt: list[int], deadline_s: float) -> None:
    """A stream; cancelling the task cancels the call."""
    request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=prompt))
    request.stop.max_new_tokens, request.stop.ignore_eos = FOREVER, True
    request.options.deadline_s = deadline_s
    async with grpc.aio.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        async for _ in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request):
            pass


Ask = Callable[[Cluster, list[int], float], Awaitable[None]]


async def stages(cluster: Cluster) -> dict[str, int]:
    """The gateway's requests by stage."""
    async with httpx.AsyncClient(timeout=60) as client:
        found: dict[str, int] = (await client.get(f"{cluster.url}/console/state")).json()["stages"]
        return found


class MissedError(Exception):
    """The machine was too slow for the deadline, or too fast to be met: no request was seen in the stage."""


async def until(what: str, check: Callable[[], Awaitable[Any]], tasks: Sequence[asyncio.Future[None]]) -> None:
    """Poll. Raises MissedError when a request ends first, AssertionError when `what` never comes."""
    deadline = time.monotonic() + REACHED_S
    while not await check():
        for task in tasks:
            if task.done():
                raise MissedError(f"a request has ended and was never {what}") from task.exception()
        assert time.monotonic() < deadline, f"never {what}"
        await asyncio.sleep(POLL_S)


async def is_served(cluster: Cluster) -> bool:
    """Whether a short answer comes."""
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        return len((await stream(client, [1000, 2000], 2, ignore_eos=True)).token_ids) == 2


async def until_served(cluster: Cluster) -> None:
    """An engine that was frozen for long has cost its worker the pair, or its readiness, for a moment."""
    async with asyncio.timeout(REACHED_S):
        while not await is_served(cluster):  # noqa: ASYNC110 - another process
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def held(
    cluster: Cluster, oracle: Oracle, stage: str, ask: Ask, number: int, deadline_s: float = REACHED_S
) -> AsyncIterator[Sequence[asyncio.Future[None]]]:
    """Requests of which at least one is in the stage, and does not leave it by itself.

    Only a transfer is too quick to be met by chance: the decode worker's engine is frozen once it has promised room,
    which it does while the prompt is computed.
    """
    await until_served(cluster)
    state, decode = STATES[stage], cluster.processes["decode-0"]
    prompt = (list(oracle.ids(LONG)) * (state.num_tokens // 250 + 1))[: state.tokens(number)]
    tasks = [asyncio.ensure_future(ask(cluster, prompt, deadline_s)) for _ in range(state.crowd)]
    freezes = stage == "transferring"

    async def reached() -> bool:
        return (await stages(cluster))[stage] > 0

    async def promised() -> bool:
        if await asyncio.to_thread(has_promised, decode):
            return True
        if (await stages(cluster))["decoding"]:
            raise MissedError("it decodes already")
        return False

    try:
        if freezes:
            await until("promised room", promised, tasks)
            decode.pause_engine()
        await until(stage, reached, tasks)
        yield tasks
    finally:
        if freezes:
            decode.resume_engine()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def has_promised(worker: Process) -> bool:
    """Whether slots are reserved for KV on its way."""
    found = re.search(r'^sluice_engine_slots{state="reserved"} (\S+)$', worker.metrics(), re.MULTILINE)
    return found is not None and float(found.group(1)) > 0


@pytest.mark.parametrize("stage", STATES)
@pytest.mark.parametrize("ask", [over_http, over_grpc])
async def test_a_client_that_leaves_is_forgotten_within_a_second(
    cluster: Cluster, oracle: Oracle, stage: str, ask: Ask
) -> None:
    async def leave(number: int) -> None:
        async with held(cluster, oracle, stage, ask, number) as tasks:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    await frees_all_in_time(cluster, leave)


async def frees_all_in_time(cluster: Cluster, end: Callable[[int], Awaitable[None]]) -> None:
    """End requests until nothing was left of them in time; `end` is told the number of its try."""
    took_s: list[float] = []
    for number in range(TRIES):
        with contextlib.suppress(MissedError):
            await end(number)
            ended = time.monotonic()
            await asyncio.to_thread(wait_nothing_left, cluster)
            took_s.append(time.monotonic() - ended)
            if took_s[-1] < WITHIN_S or took_s[-1] < ANSWERS * await answer_s(cluster):
                return
    pytest.fail(f"never within {WITHIN_S} s, or the time of {ANSWERS} answers: {took_s}")


async def answer_s(cluster: Cluster) -> float:
    """How long this machine takes for a short answer now."""
    began = time.monotonic()
    assert await is_served(cluster)
    return time.monotonic() - began


async def ends_at_deadline(cluster: Cluster, oracle: Oracle, stage: str, number: int) -> list[grpc.aio.AioRpcError]:
    """The errors of requests whose deadline came while one of them was in the stage."""
    patience = STATES[stage].deadline_s
    while True:
        try:
            async with held(cluster, oracle, stage, over_grpc, number, patience) as tasks:
                ends = await asyncio.gather(*tasks, return_exceptions=True)
        except MissedError:
            if stage == "transferring":  # with more patience the frozen engine would be given up
                raise
            patience *= 2
            assert patience < REACHED_S
            continue
        errors = [end for end in ends if isinstance(end, grpc.aio.AioRpcError)]
        assert len(errors) == len(ends), ends
        return errors


@pytest.mark.parametrize("stage", STATES)
async def test_a_deadline_frees_everything_within_a_second(cluster: Cluster, oracle: Oracle, stage: str) -> None:
    # Of those that queue, the ones that would not be in time are told so before their deadline.
    shed = {grpc.StatusCode.RESOURCE_EXHAUSTED} if stage == "queued" else set()

    async def come_to_the_deadline(number: int) -> None:
        errors = await ends_at_deadline(cluster, oracle, stage, number)
        codes = {error.code() for error in errors} - shed
        if stage == "transferring" and codes == {grpc.StatusCode.UNAVAILABLE}:
            raise MissedError("the frozen engine was given up, which takes five seconds, before the deadline")
        assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
        assert any("deadline" in (error.details() or "") for error in errors)

    await frees_all_in_time(cluster, come_to_the_deadline)


def test_the_workers_still_serve_after_all_that(cluster: Cluster, oracle: Oracle) -> None:
    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=cluster.url) as client:
            return (await stream(client, oracle.chat_ids("What is the capital of France?"), 16)).token_ids

    assert oracle.text(asyncio.run(ask())) == "The capital of France is Paris."
