"""What a request leaves to the garbage collector, whose pauses all streams feel: nothing."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest_asyncio

from services.common.messages import (
    PROTOCOL,
    AttemptDelta,
    Deltas,
    Heartbeat,
    Limits,
    Load,
    MasterMessage,
    MasterRef,
    Role,
    Submit,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.request import Delta, Finish, FinishReason, Request, SamplingParams, StopParams
from services.pd_master.api.events import stream_events
from services.pd_master.api.http import HttpCall, RequestHead
from services.pd_master.api.openai.chat_events import ChatEvents
from services.pd_master.dispatcher import PdDispatcher
from services.pd_master.live_request import LiveRequest
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.pending_load import PendingLoad
from services.pd_master.roster import Roster

WORKER = WorkerRef("w", "1")
NUM_REQUESTS = 20


class Wire:
    """A client that takes everything."""

    is_full = False

    def write(self, data: bytes) -> None:
        """Take it."""

    async def drained(self) -> None:
        """At once."""


class Worker:
    """Answers each submit with so many tokens, one a turn of the loop."""

    address, quiet_s = "w:1", 0.0

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        pending = PendingLoad()
        self._roster = Roster(MasterRef("m", "1"), pending, time.monotonic)
        self.dispatcher = PdDispatcher(cast(Any, self._roster), pending, client_buffer_bytes=1000, client_stall_s=60)
        self._roster.handler = self.dispatcher
        limits = Limits(1 << 20, 100, 1000, 1000, (2,), 512)
        self._roster.up(self, WorkerHello(PROTOCOL, WORKER, Role.MIXED, "g", "m", "", limits))
        self._said(Heartbeat(Load(), 0.0, ready=True, draining=False, proven=[], held=[]))

    def _said(self, message: WorkerMessage) -> None:
        self._roster.said(WORKER, message)

    def say(self, message: MasterMessage) -> None:
        if isinstance(message, Submit):
            asyncio.get_running_loop().call_soon(self._step, message, 0)

    def _step(self, submit: Submit, at: int) -> None:
        is_last = at + 1 == self._num_tokens
        finish = Finish(FinishReason.LENGTH, self._num_tokens) if is_last else None
        self._said(Deltas([AttemptDelta(submit.key, Delta(0, at, [7], "x", None, finish, (1,)))]))
        if not is_last:
            asyncio.get_running_loop().call_soon(self._step, submit, at + 1)


@pytest_asyncio.fixture
async def collected() -> AsyncIterator[None]:
    """Nothing is collected within the test, and nothing is left over from before it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def stream(worker: Worker, number: int, metrics: GatewayMetrics) -> None:
    """One client's stream, from its request to its end."""
    request = Request(f"{number:032x}", "m", [1, 2, 3], SamplingParams(), StopParams(100))
    live = LiveRequest(request, metrics, api="chat", arrived=time.monotonic(), on_end=lambda _: None)
    await live.dispatch(worker.dispatcher)
    head: Any = {"id": request.request_id}
    call = HttpCall(RequestHead("POST", "/", []), Wire())
    events = ChatEvents(live, head, include_usage=True, vocabulary=cast(Any, SimpleNamespace()), num_top_logprobs=0)
    try:
        await stream_events(call, live, events, live.listen)
    finally:
        await live.aclose()
    assert call.finished


async def test_streams_that_are_over_leave_nothing(collected: None) -> None:  # noqa: ARG001
    for num_tokens in (1, 5):
        worker, metrics = Worker(num_tokens), GatewayMetrics()
        for number in range(NUM_REQUESTS):
            await stream(worker, number, metrics)
        assert gc.collect() < NUM_REQUESTS
