"""The processes of `sluice up` while they run: started together, heard line by line, stopped in order.

Life of a member: running -> (its process ends) exited. `Crew` starts all, says who ended first, and stops the rest:
SIGTERM with time to finish, then SIGKILL. Every output line is passed on with the member's name before it.
"""

import asyncio
import asyncio.subprocess
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

from services.cli.plan import Process

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_LINE_LIMIT_BYTES = 1 << 20
_KILL_AFTER_S = 5.0
"""Time a process has to end after its drain time, before it is killed."""


class Member:
    """One started process and the task that passes its output on."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, prefix: str, out: TextIO) -> None:
        self.name = name
        self._process = process
        self._prefix = prefix
        self._out = out
        self._output = asyncio.create_task(self._pass_on_output())

    async def wait(self) -> int:
        """Return the exit status, a signal as 128 + its number, once the last line is out."""
        status = await self._process.wait()
        await self._output
        return 128 - status if status < 0 else status

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.is_running:
            self._process.send_signal(number)

    async def _pass_on_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._out.write(f"{self._prefix}{line.decode(errors='replace')}")
            self._out.flush()


class Crew:
    """All members; made by `start`, used by `sluice up` alone."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    @classmethod
    async def start(cls, processes: Sequence[Process], out: TextIO) -> "Crew":
        """Start every process with its lines going to `out`."""
        width = max(len(process.name) for process in processes)
        members = []
        for index, process in enumerate(processes):
            prefix = _prefix(process.name.ljust(width), index, out)
            members.append(Member(process.name, await _spawn(process), prefix, out))
        return cls(members)

    async def first_exit(self) -> tuple[str, int]:
        """Wait until a member ends by itself; return its name and exit status."""
        waits = {asyncio.create_task(member.wait()): member.name for member in self._members}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        first = done.pop()
        return waits[first], first.result()

    async def stop(self, drain_s: float) -> None:
        """Stop the gateway, so that it ends its streams while the workers still serve them, then the workers.

        Whoever is left after its time, or when this is cancelled, is killed.
        """
        *workers, gateway = self._members
        try:
            await _terminate([gateway], drain_s + _KILL_AFTER_S)
            await _terminate(workers, drain_s + _KILL_AFTER_S)
        finally:
            for member in self._members:
                member.send(signal.SIGKILL)

    async def statuses(self) -> dict[str, int]:
        """Return each member's exit status, once all have ended."""
        return {member.name: await member.wait() for member in self._members}


async def _terminate(members: Sequence[Member], within_s: float) -> None:
    for member in members:
        member.send(signal.SIGTERM)
    waits = [asyncio.create_task(member.wait()) for member in members]
    _, late = await asyncio.wait(waits, timeout=within_s)
    for wait in late:
        wait.cancel()
    for member in members:
        if member.is_running:
            print(f"{member.name} did not end within {within_s:g} s and is killed", file=sys.stderr)


async def _spawn(process: Process) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *process.argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_environment(),
        limit=_LINE_LIMIT_BYTES,
        # Ctrl-C reaches `sluice up` alone, which stops the others in order.
        start_new_session=True,
    )


def _environment() -> dict[str, str]:
    """Every option is on the command line: a variable meant for `sluice up` must not reach a child once more."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("SLUICE_") or name == "SLUICE_CACHE"
    }
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _prefix(name: str, index: int, out: TextIO) -> str:
    if out.isatty() and not os.environ.get("NO_COLOR"):
        return f"\033[{_COLOURS[index % len(_COLOURS)]}m{name}\033[0m | "
    return f"{name} | "
