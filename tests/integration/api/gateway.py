"""A gateway as a process, towards workers with fake engines in the test's own process: real HTTP, gRPC, ipc; no
model."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, TypeAlias

import httpx
import openai

from tests.fakes.workers import RunningWorker, workers
from tests.ports import free_ports

WITHIN_S = 120.0
"""Nothing takes so long, on however slow a machine."""
PREFILL = partial(RunningWorker, "prefill")
DECODE = partial(RunningWorker, "decode")
SLOW_DECODE = partial(RunningWorker, "decode", "--step-s", "0.05")


class GatewayProcess:
    """`sluice pd-master` under test."""

    def __init__(self, process: asyncio.subprocess.Process, http_port: int, grpc_port: int) -> None:
        self.process = process
        self.grpc_port = grpc_port
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{http_port}", timeout=WITHIN_S)
        self.openai: Any = openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{http_port}/v1", api_key="none", max_retries=0
        )

    async def up(self) -> None:
        """Wait until it answers."""
        async with asyncio.timeout(WITHIN_S):
            while not await self._answers():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)

    async def serves(self) -> None:
        """Wait until a chat goes through: the model is known and a pair is proven."""
        async with asyncio.timeout(WITHIN_S):
            while (await self.chat("ready?", max_tokens=1)).status_code != 200:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)

    async def chat(self, content: str, **fields: object) -> httpx.Response:
        """One chat, whole."""
        body = {"model": "demo", "messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def stop(self) -> int:
        """SIGTERM, and its exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), WITHIN_S)

    async def _answers(self) -> bool:
        assert self.process.returncode is None, "the gateway ended"
        try:
            return (await self.http.get("/readiness")).status_code == 200
        except httpx.TransportError:
            return False


@contextlib.asynccontextmanager
async def gateway(*options: str, addresses: list[str] | None = None) -> AsyncIterator[GatewayProcess]:
    """Start a gateway; it ends with status 0."""
    http_port, grpc_port = free_ports(2)
    network = ["--host", "127.0.0.1", "--http-port", str(http_port), "--grpc-port", str(grpc_port)]
    towards = ["--workers", ",".join(addresses)] if addresses else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli.main", "pd-master", *network, *towards, *options, env=os.environ
    )
    running = GatewayProcess(process, http_port, grpc_port)
    try:
        await running.up()
        yield running
        assert await running.stop() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await running.http.aclose()
        await running.openai.close()


Served: TypeAlias = tuple[GatewayProcess, list[RunningWorker]]


@contextlib.asynccontextmanager
async def served(*starts: Callable[[], RunningWorker], options: tuple[str, ...] = ()) -> AsyncIterator[Served]:
    """A gateway and its workers, ready for chats."""
    async with workers(*starts) as running, gateway(*options, addresses=[one.address for one in running]) as gate:
        await gate.serves()
        yield gate, running
