"""Streams that break, come back, are superseded or speak nonsense."""

import asyncio
from functools import partial

import grpc
import pytest

from services.common import rpc
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    Joined,
    LiveAttempt,
    MasterHello,
    MasterRef,
    PlacementRefused,
    Prefilling,
    RefusalReason,
)
from services.common.wire import master_message_to_proto
from sluice.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes.master import FakeMaster, Link, Seen, make_request, master
from tests.fakes.tokens import fake_output
from tests.fakes.workers import DEMO, RunningWorker, workers
from tests.ports import free_ports

pytestmark = pytest.mark.demo_model


def prefill() -> RunningWorker:
    return RunningWorker("prefill", master_timeout_s=1.0)


def decode(grpc_port: int = 0) -> RunningWorker:
    return RunningWorker("decode", "--step-s", "0.005", grpc_port=grpc_port, master_timeout_s=1.0)


async def test_a_broken_session_resumes_by_index_without_a_gap_or_a_repeat() -> None:
    patient = lambda: RunningWorker("decode", "--step-s", "0.005", master_timeout_s=60.0)  # noqa: E731
    async with workers(prefill, patient) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 120)
        key = m.submit(request, p.address, d.address)
        seen = m.seen[request.request_id]
        for stop_at in (20, 60):
            await m.until(lambda: len(seen.tokens.get(0, [])) > stop_at)  # noqa: B023
            await m.links[d.address].close()
            await asyncio.sleep(0.1)
            live = [LiveAttempt(key, {0: len(seen.tokens[0])})]
            m.links[d.address] = await Link(m, d.address).open(live)
        await m.finished(request)
        assert seen.tokens[0] == fake_output([5, 6, 7], 120)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_what_a_new_session_does_not_name_is_ended() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 5000)
        m.submit(request, p.address, d.address)
        await m.event(request, Joined)
        await m.links[d.address].close()
        m.links[d.address] = await Link(m, d.address).open([])
        await d.until_empty()


async def test_what_a_new_session_names_and_nobody_knows_is_reported() -> None:
    async with workers(decode) as (d,):
        m = FakeMaster()
        key = AttemptKey("ab" * 16, 3)
        await Link(m, d.address).open([LiveAttempt(key, {0: 0})])
        m.seen.setdefault(key.request_id, Seen())
        await m.until(lambda: m.seen[key.request_id].events)
        (failed,) = m.seen[key.request_id].events
        assert isinstance(failed, Failed)
        assert failed.cause is FailureCause.UNKNOWN_ATTEMPT


async def test_a_silent_masters_requests_are_ended_and_others_go_on() -> None:
    async with workers(prefill, decode) as (p, d), master(p.address, d.address, master_id="stays") as stays:
        async with master(p.address, d.address, master_id="dies") as dies:
            await stays.pair(p.address, d.address)
            await dies.pair(p.address, d.address)
            long_one, lost_one = make_request([1, 2], 400), make_request([3, 4], 5000)
            stays.submit(long_one, p.address, d.address)
            dies.submit(lost_one, p.address, d.address)
            await dies.event(lost_one, Joined)
        assert (await stays.finished(long_one)).tokens[0] == fake_output([1, 2], 400)
        await asyncio.gather(p.until_empty(), d.until_empty())


async def test_a_newer_session_of_the_same_master_supersedes_the_older() -> None:
    async with workers(decode) as (d,):
        m = FakeMaster()
        older = await Link(m, d.address).open()
        newer = await Link(m, d.address).open()
        await m.until(lambda: older.error is not None)
        assert older.error is not None
        assert older.error.code() is grpc.StatusCode.ABORTED
        assert newer.error is None
        await newer.close()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (MasterHello(99, MasterRef("m", "1"), []), grpc.StatusCode.FAILED_PRECONDITION),
        (Abort([]), grpc.StatusCode.FAILED_PRECONDITION),
        (None, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_session_without_a_proper_hello_is_refused(
    first: MasterHello | Abort | None, code: grpc.StatusCode
) -> None:
    async with workers(decode) as (d,), rpc.channel(d.address) as channel:
        proto = worker_pb2.WorkerServiceSessionRequest() if first is None else master_message_to_proto(first)
        call = worker_pb2_grpc.WorkerServiceStub(channel).Session(iter([proto]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
        assert caught.value.code() is code


async def test_an_orphaned_reservation_is_given_back_after_its_lease() -> None:
    slow = lambda: RunningWorker("prefill", "--step-s", "1")  # noqa: E731
    lending = lambda: RunningWorker("decode", reservation_lease_s=2.0)  # noqa: E731
    async with workers(slow, lending) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request(list(range(5, 2000)), 50)
        m.submit(request, p.address, d.address)
        await m.event(request, Prefilling)
        await d.until_reserved()
        await p.kill()
        await asyncio.wait_for(d.until_empty(), 60)  # without a word from the master


async def test_a_decode_worker_that_comes_back_is_another_start() -> None:
    (port,) = free_ports(1)
    async with workers(prefill, partial(decode, port)) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        before = m.peer(d.address)
        await d.kill()
        again = await RunningWorker("decode", grpc_port=port).serving()
        try:
            await m.connect(again.address)
            assert m.peer(again.address).worker.worker_id == before.worker.worker_id
            assert m.peer(again.address).worker != before.worker
            await m.pair(p.address, again.address)
            request = make_request([5, 6, 7], 10)
            m.submit(request, p.address, again.address)
            assert (await m.finished(request)).tokens[0] == fake_output([5, 6, 7], 10)
        finally:
            await again.stop()


async def test_the_old_start_of_a_decode_worker_is_never_talked_to() -> None:
    (port,) = free_ports(1)
    async with workers(prefill, partial(decode, port)) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        old = m.peer(d.address)
        await d.kill()
        again = await RunningWorker("decode", grpc_port=port).serving()
        try:
            await m.connect(again.address)
            request = make_request([5, 6, 7], 10)
            m.peer = lambda address: old  # type: ignore[method-assign]  # noqa: ARG005 - a master that is behind
            key = m.submit(request, p.address, again.address)
            refused = await m.event(request, PlacementRefused)
            assert refused.reason is RefusalReason.NO_PEER
            m.abort(key)
            await asyncio.gather(p.until_empty(), again.until_empty())
        finally:
            await again.stop()


async def test_tokenizer_files_cross_whole() -> None:
    async with workers(decode) as (d,), rpc.channel(d.address) as channel:
        files: dict[str, bytes] = {}
        call = worker_pb2_grpc.WorkerServiceStub(channel).GetTokenizer(worker_pb2.GetTokenizerRequest())
        async for part in call:
            files[part.name] = files.get(part.name, b"") + part.chunk
        assert files["tokenizer.json"] == (DEMO / "tokenizer.json").read_bytes()
        assert files["generation_config.json"] == (DEMO / "generation_config.json").read_bytes()
