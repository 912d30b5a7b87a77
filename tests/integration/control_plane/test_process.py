"""A worker as a process: readiness, drain, a broken engine, gRPC health and reflection."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.common import rpc
from services.common.messages import Joined, Placed, PlacementRefused, RefusalReason, Refused
from services.common.options import ConfigError
from services.worker.app import WorkerBrokenError
from services.worker.engine_client import EngineLostError
from tests.fakes.master import make_request, master
from tests.fakes.tokens import fake_output
from tests.fakes.workers import RunningWorker, workers

pytestmark = pytest.mark.demo_model


def prefill(**options: object) -> RunningWorker:
    return RunningWorker("prefill", **options)  # type: ignore[arg-type]


def decode(**options: object) -> RunningWorker:
    return RunningWorker("decode", "--step-s", "0.01", **options)  # type: ignore[arg-type]


def patient(start: Callable[..., RunningWorker]) -> Callable[[], RunningWorker]:
    """Drains until it is empty, and no sooner ends by its deadline."""
    return partial(start, drain_s=600.0)


async def get(worker: RunningWorker, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.get(f"http://127.0.0.1:{worker.worker.http_port}{path}")


async def test_a_worker_is_ready_once_its_model_is_loaded_and_alive_before() -> None:
    one = RunningWorker("decode", "--load-s", "2")
    await one.started()
    loading = await get(one, "/readiness")
    assert (loading.status_code, loading.text) == (503, "the model is being loaded\n")
    assert (await get(one, "/liveness")).status_code == 200
    await one.serving()
    assert (await get(one, "/readiness")).status_code == 200
    assert (await get(one, "/health")).status_code == 200
    await one.stop()


async def test_a_stopped_worker_ends_while_its_model_is_loading() -> None:
    one = RunningWorker("decode", "--load-s", "60")
    await one.started()
    await asyncio.wait_for(one.stop(), 60)


async def test_drain_finishes_what_runs_and_refuses_what_is_new() -> None:
    async with workers(patient(prefill), patient(decode)) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        running = make_request([5, 6, 7], 200)
        m.submit(running, p.address, d.address)
        await m.event(running, Joined)
        with d.standing_still():
            d.worker.stop()
            await m.until(lambda: m.last_heartbeat(d.address).draining)
            assert (await get(d, "/readiness")).text == "draining\n"
            late = make_request([8, 9], 5)
            late_key = m.submit(late, p.address, d.address)
            assert (await m.event(late, PlacementRefused)).reason is RefusalReason.DRAINING
        m.abort(late_key)
        assert (await m.finished(running)).tokens[0] == fake_output([5, 6, 7], 200)
        await asyncio.wait_for(d.task, 60)
        await m.until(lambda: m.links[d.address].error is not None)
        error = m.links[d.address].error
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        p.worker.stop()
        await m.until(lambda: m.links[p.address].error is not None)
        await asyncio.wait_for(p.task, 60)


async def test_a_draining_prefill_worker_refuses_new_prompts() -> None:
    slow = lambda: RunningWorker("prefill", "--step-s", "0.2", drain_s=600.0)  # noqa: E731
    async with workers(slow, decode) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        running, late = make_request(list(range(5, 1000)), 5), make_request([8, 9], 5)
        m.submit(running, p.address, d.address)
        await m.event(running, Placed)
        with p.standing_still():
            p.worker.stop()
            await m.until(lambda: m.last_heartbeat(p.address).draining)
            m.submit(late, p.address, d.address)
            assert (await m.event(late, Refused)).reason is RefusalReason.DRAINING
        assert (await m.finished(running)).tokens[0] == fake_output(running.prompt_ids, 5)
        m.abort(next(iter(m.live)))
        await asyncio.wait_for(p.task, 60)


async def test_a_drained_worker_tells_what_its_engine_cannot_account_for(caplog: pytest.LogCaptureFixture) -> None:
    one = await RunningWorker("decode", "--problem", "3 slots belong to nobody").serving()
    await asyncio.wait_for(one.stop(), 60)
    assert "the engine ends with wrong books: 3 slots belong to nobody" in caplog.text


async def test_drain_gives_up_at_its_deadline() -> None:
    start = lambda: RunningWorker("decode", "--step-s", "0.05", drain_s=0.3)  # noqa: E731
    async with workers(prefill, start) as (p, d), master(p.address, d.address) as m:
        await m.pair(p.address, d.address)
        request = make_request([5, 6, 7], 5000)
        m.submit(request, p.address, d.address)
        await m.event(request, Joined)
        await asyncio.wait_for(d.stop(), 60)


async def test_a_broken_engine_ends_the_worker_and_its_streams() -> None:
    one = await RunningWorker("decode").serving()
    async with master(one.address) as m:
        one.worker.engine.kill()
        with pytest.raises(EngineLostError):
            await asyncio.wait_for(one.task, 60)
        await m.until(lambda: m.links[one.address].error is not None)
        assert one.worker.status.problem() is not None


async def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"--model: .*tokenizer\.json"):
        await RunningWorker("decode", model=str(tmp_path)).task


async def test_a_taken_port_is_named() -> None:
    async with workers(decode) as (d,):
        with pytest.raises(ConfigError, match="--grpc-port"):
            RunningWorker("decode", grpc_port=int(d.address.rsplit(":", 1)[1]))
        with pytest.raises(ConfigError, match="--http-port"):
            await RunningWorker("decode", http_port=d.worker.http_port).task


async def test_a_failing_core_ends_the_worker() -> None:
    one = await RunningWorker("decode").serving()
    async with master(one.address) as m:

        def fail(*_: object) -> list[object]:
            raise AssertionError("an invariant does not hold")

        assert one.worker.service is not None
        one.worker.service.core.from_master = fail  # type: ignore[method-assign,assignment]
        m.reconcile()
        with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
            await asyncio.wait_for(one.task, 60)
        assert caught.group_contains(WorkerBrokenError)
        await m.until(lambda: m.links[one.address].error is not None)


async def test_a_core_that_fails_while_the_worker_drains_ends_it_at_once() -> None:
    async with workers(prefill) as (p,):
        d = await RunningWorker("decode", "--step-s", "0.05", drain_s=600.0).serving()
        async with master(p.address, d.address) as m:
            await m.pair(p.address, d.address)
            request = make_request([5, 6, 7], 5000)
            m.submit(request, p.address, d.address)
            await m.event(request, Joined)
            d.worker.stop()
            await m.until(lambda: m.last_heartbeat(d.address).draining)

            def fail(*_: object) -> list[object]:
                raise AssertionError("an invariant does not hold")

            assert d.worker.service is not None
            d.worker.service.core.from_master = fail  # type: ignore[method-assign,assignment]
            m.reconcile()
            with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
                await asyncio.wait_for(d.task, 60)
            assert caught.group_contains(WorkerBrokenError)


async def test_streams_end_before_the_last_spans_are_sent() -> None:
    one = RunningWorker("decode", otlp_endpoint="http://127.0.0.1:1")
    streams_ended = asyncio.Event()

    async def run_with_a_slow_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await streams_ended.wait()

    assert one.worker._exporter is not None
    one.worker._exporter.run = run_with_a_slow_end  # type: ignore[method-assign]
    await one.serving()
    async with master(one.address) as m:
        one.worker.engine.kill()
        await m.until(lambda: m.links[one.address].error is not None)
        streams_ended.set()
        with pytest.raises(EngineLostError):
            await asyncio.wait_for(one.task, 60)


async def test_grpc_health_and_reflection_name_the_services() -> None:
    async with workers(decode) as (d,), rpc.channel(d.address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]
        health = await check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        answers = stub.ServerReflectionInfo(iter([ask]))
        names = {one.name for one in (await anext(aiter(answers))).list_services_response.service}
        assert {"sluice.v1.WorkerService", "sluice.v1.ReservationService", "grpc.health.v1.Health"} <= names
