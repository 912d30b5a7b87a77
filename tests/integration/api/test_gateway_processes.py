"""A gateway of two processes on the same ports: both serve, one that dies is replaced, all drain, metrics add up."""

import asyncio
import contextlib
import re
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from services.common.options import ConfigError
from services.pd_master.exposition import merge_pages
from services.pd_master.processes import _held
from tests.fakes.workers import workers
from tests.integration.api.gateway import DECODE, PREFILL, SLOW_DECODE, WITHIN_S, GatewayProcess, gateway, served

TWO = ("--processes", "2")


def processes_of(gate: GatewayProcess) -> list[psutil.Process]:
    return psutil.Process(gate.process.pid).children()


async def ask(gate: GatewayProcess, count: int) -> list[int]:
    """So many chats, each on a connection of its own; their statuses."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    statuses = []
    for _ in range(count):
        async with httpx.AsyncClient(base_url=gate.http.base_url, timeout=WITHIN_S) as client:
            statuses.append((await client.post("/v1/chat/completions", json=body)).status_code)
    return statuses


async def metric(gate: GatewayProcess, name: str) -> Counter[str]:
    """A series' values by process, summed over its other labels."""
    page = (await gate.http.get("/metrics")).text
    found: Counter[str] = Counter()
    for process, value in re.findall(r"^" + name + r'\{(?:.*,)?process="(\w+)"\} (\S+)', page, re.MULTILINE):
        found[process] += int(float(value))
    return found


async def until_sum(gate: GatewayProcess, name: str, least: int) -> Counter[str]:
    """A series' values by process, once they add up to so much."""
    async with asyncio.timeout(WITHIN_S):
        while sum((found := await metric(gate, name)).values()) < least:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)
    return found


async def ready(gate: GatewayProcess) -> None:
    """Every process knows the pair."""
    await until_sum(gate, "sluice_gateway_proven_pairs", 2)


async def test_both_serve_and_their_metrics_stand_on_one_page() -> None:
    async with served(PREFILL, DECODE, options=TWO) as (gate, _):
        await ready(gate)
        before = await metric(gate, "sluice_gateway_requests_total")
        assert await ask(gate, 40) == [200] * 40
        after = await metric(gate, "sluice_gateway_requests_total")
        assert sum((after - before).values()) == 40
        assert set(after - before) == {"0", "1"}


async def test_death_of_one_loses_only_its_streams_and_it_is_started_again() -> None:
    async with served(PREFILL, SLOW_DECODE, options=TWO) as (gate, _):
        await ready(gate)
        streams = [asyncio.create_task(finishes(gate)) for _ in range(16)]
        running = await until_sum(gate, "sluice_gateway_active_requests", 16)
        victim, *_ = [one for one in processes_of(gate) if "0" in one.cmdline()]
        victim.send_signal(signal.SIGKILL)
        assert sum(await asyncio.gather(*streams)) == running["1"]
        await ready(gate)
        assert (await metric(gate, "sluice_gateway_process_restarts_total"))["parent"] == 1
        assert await ask(gate, 10) == [200] * 10


async def finishes(gate: GatewayProcess) -> bool:
    """Whether a stream of six seconds on a connection of its own comes to its end."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 120, "stream": True}
    try:
        async with httpx.AsyncClient(base_url=gate.http.base_url, timeout=WITHIN_S) as client:
            return "[DONE]" in (await client.post("/v1/chat/completions", json=body)).text
    except httpx.TransportError:
        return False


async def test_all_finish_their_streams_after_sigterm() -> None:
    async with served(PREFILL, SLOW_DECODE, options=TWO) as (gate, _):
        await ready(gate)
        streams = [asyncio.create_task(finishes(gate)) for _ in range(12)]
        await until_sum(gate, "sluice_gateway_active_requests", 12)
        children = processes_of(gate)
        assert await gate.stop() == 0
        assert await asyncio.gather(*streams) == [True] * 12
        assert not any(one.is_running() for one in children)


async def test_none_outlives_a_parent_that_is_killed() -> None:
    async with workers(PREFILL) as (worker,):
        with contextlib.suppress(AssertionError):  # it does not end with status 0
            async with gateway(*TWO, addresses=[worker.address]) as gate:
                children = processes_of(gate)
                gate.process.kill()
    assert len(children) == 2
    assert not (await asyncio.to_thread(psutil.wait_procs, children, WITHIN_S))[1]


async def test_wrong_configuration_ends_all_at_once(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli.main", "pd-master", *TWO, "--http-port", "0", "--grpc-port", "0",
        "--api-keys-file", str(tmp_path / "none"), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        _, errors = await asyncio.wait_for(process.communicate(), WITHIN_S)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 2
    assert b"--api-keys-file" in errors


def test_a_port_on_which_somebody_listens_is_refused_though_it_could_be_shared() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as somebody:
        port = somebody.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--http-port: .*{port}"), _held("127.0.0.1", port, "--http-port"):
            pass


def test_a_port_whose_last_connection_has_just_ended_can_be_taken_again() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as former:
        port = former.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            former.accept()[0].close()  # the side that closes first keeps the port in TIME_WAIT
            assert client.recv(1) == b""
    with _held("127.0.0.1", port, "--http-port") as held:
        assert held == port


def test_a_page_of_all_names_each_family_once_and_the_process_of_each_sample() -> None:
    page = '# HELP a_total x\n# TYPE a_total counter\na_total{k="v"} 1.0\n# HELP b y\n# TYPE b gauge\nb 2.0\n'
    assert merge_pages({"0": page, "1": page.replace("1.0", "3.0")}).splitlines() == [
        "# HELP a_total x", "# TYPE a_total counter",
        'a_total{k="v",process="0"} 1.0', 'a_total{k="v",process="1"} 3.0',
        "# HELP b y", "# TYPE b gauge", 'b{process="0"} 2.0', 'b{process="1"} 2.0',
    ]  # fmt: skip
