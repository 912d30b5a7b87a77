"""Workers in the test's own process, each with a fake engine as a child process: real gRPC, real ipc, no model."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx

from services.common.config import WorkerConfig
from services.common.ipc import CheckIntegrity, Event, Integrity
from services.decode import mixed
from services.decode import service as decode_service
from services.prefill import service as prefill_service
from services.worker.app import Worker
from services.worker.parts import BuildRole
from tests.ports import free_ports

DEMO = Path("~/.cache/sluice/models/smollm2-135m-instruct").expanduser()
FAKE_ENGINE = (sys.executable, "-m", "tests.fakes.engine", "-")
BUILDS: dict[str, BuildRole] = {
    "prefill": prefill_service.build,
    "decode": decode_service.build,
    "mixed": mixed.build,
}


class RunningWorker:
    """One worker under test."""

    def __init__(self, role: str, *engine_options: str, grpc_port: int = 0, **options: object) -> None:
        values: dict[str, object] = {
            "model": str(DEMO), "served_model_name": "demo", "role": role, "host": "127.0.0.1",
            "grpc_port": grpc_port or free_ports(1)[0],
            "drain_s": 15.0,
        }  # fmt: skip
        config = WorkerConfig(**(values | options))  # type: ignore[arg-type]
        self.worker = Worker(config, BUILDS[role], engine_command=(*FAKE_ENGINE, *engine_options))
        self.task = asyncio.create_task(self.worker.run())
        self._answers: dict[int, Integrity] = {}
        self._changed = asyncio.Event()

    @property
    def address(self) -> str:
        """Its gRPC address."""
        return self.worker.identity.grpc_address

    async def started(self) -> None:
        """Wait until its engine process and its health pages are there."""
        async with asyncio.timeout(60):
            while not self.worker.engine.pids:  # noqa: ASYNC110 - the worker has no event for it
                await asyncio.sleep(0.01)

    async def metrics(self) -> str:
        """Its /metrics."""
        async with httpx.AsyncClient(timeout=60) as client:
            return (await client.get(f"http://127.0.0.1:{self.worker.http_port}/metrics")).text

    async def serving(self) -> "RunningWorker":
        """Wait until masters may come; fails at once when the worker ends before."""
        serving = asyncio.create_task(self.worker.serving.wait())
        await asyncio.wait({serving, self.task}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        assert serving.done()
        self.worker.on_engine_event(self._note)
        return self

    def _note(self, event: Event) -> None:
        if isinstance(event, Integrity):
            self._answers[event.token] = event
            self._changed.set()

    async def integrity(self) -> Integrity:
        """What the engine says of itself now."""
        token = len(self._answers) + 1
        self.worker.engine.send(CheckIntegrity(token))
        async with asyncio.timeout(60):
            while token not in self._answers:
                self._changed.clear()
                await self._changed.wait()
        return self._answers[token]

    async def until_empty(self) -> None:
        """Wait until engine, Router and core hold nothing, and all slots are free."""
        async with asyncio.timeout(60):
            while not await self._is_empty():  # noqa: ASYNC110 - the engine is asked again each time
                await asyncio.sleep(0.05)

    async def until_reserved(self) -> None:
        """Wait until slots are promised to KV on its way."""
        async with asyncio.timeout(60):
            while not (await self.integrity()).usage.reserved_slots:  # noqa: ASYNC110 - the engine is asked again
                await asyncio.sleep(0.02)

    async def until_decoding(self) -> None:
        """Wait until output has been produced here."""
        async with asyncio.timeout(60):
            while "sluice_output_tokens_total 0.0" in await self.metrics():  # noqa: ASYNC110 - a page has no event
                await asyncio.sleep(0.02)

    async def _is_empty(self) -> bool:
        answer = await self.integrity()
        assert not answer.problems
        assert self.worker.jobs is not None
        idle = answer.num_jobs == 0 and len(self.worker.jobs) == 0 and self.worker.num_attempts == 0
        if idle:
            self.worker.jobs.router.check_integrity()
            assert answer.usage.free_slots + answer.usage.evictable_slots == answer.usage.num_slots
        return idle

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Its engine does nothing inside the block: what runs there is still running at the block's end."""
        for pid in self.worker.engine.pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in self.worker.engine.pids:
                os.kill(pid, signal.SIGCONT)

    async def stop(self) -> None:
        """SIGTERM, and its end."""
        self.worker.stop()
        await asyncio.wait_for(self.task, 60)

    async def kill(self) -> None:
        """The whole pod is gone at once: process, engine and sockets."""
        if self.worker.engine.pids:
            self.worker.engine.kill()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def workers(*starts: Callable[[], RunningWorker]) -> AsyncIterator[list[RunningWorker]]:
    """Start workers side by side; all are stopped at the end, and none may have broken unless the test killed it."""
    running = [start() for start in starts]
    try:
        await asyncio.gather(*(one.serving() for one in running))
        yield running
    finally:
        await asyncio.gather(*(one.stop() for one in running if not one.task.done()))
