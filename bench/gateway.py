"""What a pd_master costs: CPU per request and per streamed token, added time, connections held, memory.

    python -m bench.gateway [--streams 128] [--tokens 400] [--requests 2000] [--held 1000] [--soak 100000] [--json PATH]
    python -m bench.gateway --step-s 0.001 --rate 100 --held 0

The gateway is the real process; behind it stands a worker that computes nothing but speaks the session protocol, so
what is measured is the gateway's own path: HTTP, template, tokenizer, dispatch, frames in, events out. CPU time is the
gateway process's, user and system, read from the kernel; it does not depend on what else the machine does.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import uvloop

from bench.gateway_load.client import Connection, Outcome
from services.cli.demo_model import fetch_demo_model

_PACED_S = 10.0
_PARTS = 5
"""Readings of the memory during `--soak`."""


class Measured(NamedTuple):
    """One phase: its figures, and what the clients saw."""

    cpu_s: float
    wall_s: float
    outcomes: list[Outcome]

    def first_byte_ms(self, share: float) -> float:
        """A quantile of the time to the first byte."""
        times = sorted(outcome.first_byte_s for outcome in self.outcomes)
        return 1e3 * times[min(len(times) - 1, int(share * len(times)))]


class Gateway:
    """The process under test."""

    def __init__(self, pid: int, port: int) -> None:
        self.port = port
        self._process = psutil.Process(pid)

    @property
    def cpu_s(self) -> float:
        """CPU time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def rss_mb(self) -> float:
        """Resident memory."""
        return float(self._process.memory_info().rss) / 1e6

    async def measure(self, work: AsyncIterator[Outcome]) -> Measured:
        """Run one phase."""
        loop = asyncio.get_running_loop()
        cpu_s, started = self.cpu_s, loop.time()
        outcomes = [outcome async for outcome in work]
        assert all(outcome.is_ok for outcome in outcomes), "a request failed"
        return Measured(self.cpu_s - cpu_s, loop.time() - started, outcomes)


async def one_by_one(gateway: Gateway, count: int, *, stream: bool, lanes: int = 8) -> AsyncIterator[Outcome]:
    """`count` requests of one token over a few connections."""

    async def lane() -> list[Outcome]:
        connection = Connection(gateway.port)
        outcomes = [await connection.chat(1, stream=stream) for _ in range(count // lanes)]
        connection.close()
        return outcomes

    for outcomes in await asyncio.gather(*(lane() for _ in range(lanes))):
        for outcome in outcomes:
            yield outcome


async def at_once(gateway: Gateway, count: int, num_tokens: int) -> AsyncIterator[Outcome]:
    """`count` streams side by side."""

    async def one() -> Outcome:
        connection = Connection(gateway.port)
        outcome = await connection.chat(num_tokens, stream=True)
        connection.close()
        return outcome

    for outcome in await asyncio.gather(*(one() for _ in range(count))):
        yield outcome


async def paced(gateway: Gateway, rate: float, seconds: float) -> AsyncIterator[Outcome]:
    """`rate` requests a second of one token each, evenly, whether or not those before have been answered."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    idle: list[Connection] = []

    async def one(number: int) -> Outcome:
        await asyncio.sleep(began + number / rate - loop.time())
        connection = idle.pop() if idle else Connection(gateway.port)
        outcome = await connection.chat(1, stream=True)
        idle.append(connection)
        return outcome

    for outcome in await asyncio.gather(*(one(number) for number in range(int(rate * seconds)))):
        yield outcome
    for connection in idle:
        connection.close()


@contextlib.asynccontextmanager
async def running(step_s: float) -> AsyncIterator[Gateway]:
    """The worker and the gateway, ready."""
    folder = await asyncio.to_thread(fetch_demo_model)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.gateway_load.fake_worker", str(folder), str(step_s), stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    worker_port = int(await worker.stdout.readline())
    port = _free_port()
    options = ["--http-port", str(port), "--grpc-port", "0", "--workers", f"127.0.0.1:{worker_port}"]
    limits = ["--max-queue", "100000", "--log-level", "warning", "--host", "127.0.0.1"]
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli.main", "pd-master", *options, *limits
    )
    try:
        await _ready(port)
        yield Gateway(gateway.pid, port)
    finally:
        for process in (gateway, worker):
            process.kill()
            await process.wait()


async def _ready(port: int) -> None:
    body = {"model": "bench", "prompt": "x", "max_tokens": 1}
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.post("/v1/completions", json=body)).status_code == 200:
                    return
            await asyncio.sleep(0.05)


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def soaked(gateway: Gateway, count: int) -> float:
    """Resident memory, MB, after so many more requests."""
    await gateway.measure(one_by_one(gateway, count, stream=True))
    print(f"{count} requests more: {gateway.rss_mb:.1f} MB", file=sys.stderr, flush=True)
    return gateway.rss_mb


async def run(options: argparse.Namespace) -> dict[str, float]:
    """All phases."""
    async with running(options.step_s) as gateway:
        await gateway.measure(one_by_one(gateway, 200, stream=True))  # warm: templates, tokenizer, code
        whole = await gateway.measure(one_by_one(gateway, options.requests, stream=False))
        short = await gateway.measure(one_by_one(gateway, options.requests, stream=True))
        even = await gateway.measure(paced(gateway, options.rate, _PACED_S))
        before_mb = gateway.rss_mb
        opened = await gateway.measure(at_once(gateway, options.streams, 1))
        streams = await gateway.measure(at_once(gateway, options.streams, options.tokens))
        held = await gateway.measure(at_once(gateway, options.held, 20)) if options.held else None
        held_mb = gateway.rss_mb
        soaked_mb = [await soaked(gateway, options.soak // _PARTS) for _ in range(_PARTS)] if options.soak else []
        num_tokens = options.streams * options.tokens
        return {
            "cpu_ms_per_request_whole": 1e3 * whole.cpu_s / len(whole.outcomes),
            "cpu_ms_per_request_streamed": 1e3 * short.cpu_s / len(short.outcomes),
            "cpu_us_per_streamed_token": 1e6 * (streams.cpu_s - opened.cpu_s) / (num_tokens - options.streams),
            "streamed_tokens_per_s": num_tokens / streams.wall_s,
            "first_byte_ms_p50_at_rate": even.first_byte_ms(0.5),
            "first_byte_ms_p99_at_rate": even.first_byte_ms(0.99),
            "streams_held": float(len(held.outcomes)) if held else 0.0,
            "rss_mb_before": before_mb,
            "rss_mb_after": held_mb,
            **{f"rss_mb_after_{(at + 1) * options.soak // _PARTS}_more": mb for at, mb in enumerate(soaked_mb)},
        }


def main() -> None:
    """Print a table, and JSON where asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second of the first bytes' phase")
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--soak", type=int, default=0, help="requests after all else, for what memory does")
    parser.add_argument("--step-s", type=float, default=0.01, help="of the worker; a first byte waits half of it")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = [uvloop.run(run(options)) for _ in range(options.rounds)]
    figures = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    for name, value in figures.items():
        print(f"{name:32} {value:12.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
