"""The processes of one engine, one a rank: started together, and of no use without each other."""

import asyncio
import contextlib
import logging
import os
import signal
from typing import Any, NamedTuple

import msgspec

log = logging.getLogger(__name__)


class RankEnd(NamedTuple):
    """How one of them ended."""

    name: str
    """For people."""
    status: int


class RankProcesses:
    """Owned by the engine client. Each process reads its configuration from the first line of its stdin."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, command: tuple[str, ...], configs: list[dict[str, Any]]) -> None:
        """Start one process for each configuration, in the order of ranks."""
        for rank, config in enumerate(configs):
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
            self._processes.append(process)
            assert process.stdin is not None
            # On stdin, since others can read argv. The pipe stays open: its end tells the engine that we are gone.
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            log.info("engine started, rank %d, pid %s", rank, process.pid)

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [process.pid for process in self._processes if process.returncode is None]

    def is_one_gone(self) -> bool:
        """Whether one has ended."""
        return len(self.pids) < len(self._processes)

    async def first_end(self) -> RankEnd:
        """Wait until one of them ends."""
        waits = [asyncio.create_task(process.wait()) for process in self._processes]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        rank = min(waits.index(wait) for wait in done)
        name = "the engine" if len(waits) == 1 else f"rank {rank} of the engine"
        return RankEnd(name, waits[rank].result())

    async def all_ended(self) -> int:
        """Wait until all have ended; returns the first status that is not 0, or 0."""
        statuses = [await process.wait() for process in self._processes]
        return next((status for status in statuses if status), 0)

    def kill(self) -> None:
        """End them all at once."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
