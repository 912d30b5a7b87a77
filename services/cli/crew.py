"""The processes of `sluice up` while they run: started together, heard line by line, stopped in order.

Life of a member: running -> (its process ends) exited. `Crew` starts all, says who ended first, and stops the rest:
SIGTERM with time to finish, then SIGKILL. Every output line is passed on with the member's name before it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import TextIO

from services.cli.plan import Process

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_READ_BYTES = 1 << 16
_LAST_LINES_S = 1.0
"""How long the last lines of a process that ended are waited for."""
_KILL_AFTER_S = 5.0
"""Time a process has to end after its drain time, before it is killed."""


class Member:
    """One started process, the task that passes its output on, and the future that holds its exit status.

    The exit is watched through a pidfd and not through the end of its output: what the process has started may hold
    that open for longer.
    """

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", prefix: bytes, out: TextIO) -> None:
        self.name = name
        self._process = process
        self._prefix = prefix
        self._out = out
        loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = loop.create_future()
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._take_exit, pidfd)
        self._output = asyncio.create_task(self._pass_on_output())

    async def wait(self) -> int:
        """Return the exit status, a signal as 128 + its number, once its last lines are out."""
        status = await asyncio.shield(self._exit)
        await asyncio.wait({self._output}, timeout=_LAST_LINES_S)
        return status

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return not self._exit.done()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.is_running:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and whatever it started: it leads a process group of its own, named by its pid."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _take_exit(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = self._process.wait()
        self._exit.set_result(128 - status if status < 0 else status)

    async def _pass_on_output(self) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        rest = b""
        while chunk := await reader.read(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            self._write(lines)
        self._write([rest] if rest else [])

    def _write(self, lines: Sequence[bytes]) -> None:
        text = b"".join(self._prefix + line + b"\n" for line in lines)
        self._out.write(text.decode(errors="replace"))
        self._out.flush()


class Crew:
    """All members; made by `start`, used by `sluice up` alone."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    @classmethod
    def start(cls, processes: Sequence[Process], out: TextIO) -> "Crew":
        """Start every process with its lines going to `out`; called on the event loop."""
        width = max(len(process.name) for process in processes)
        members = []
        for index, process in enumerate(processes):
            prefix = _prefix(process.name.ljust(width), index, out)
            members.append(Member(process.name, _spawn(process), prefix.encode(), out))
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

        Whatever is left after its time, or when this is cancelled, is killed, engines that lost their process included.
        """
        *workers, gateway = self._members
        try:
            await _terminate([gateway], drain_s + _KILL_AFTER_S)
            await _terminate(workers, drain_s + _KILL_AFTER_S)
        finally:
            for member in self._members:
                member.kill()

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


def _spawn(process: Process) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        process.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(process),
        # Ctrl-C reaches `sluice up` alone, which stops the others in order.
        start_new_session=True,
    )


def _environment(process: Process) -> dict[str, str]:
    """Every option is on the command line: a variable meant for `sluice up` must not reach a child once more."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("SLUICE_") or name == "SLUICE_CACHE"
    }
    if process.visible_devices is not None:
        kept["CUDA_VISIBLE_DEVICES"] = process.visible_devices
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _prefix(name: str, index: int, out: TextIO) -> str:
    if out.isatty() and not os.environ.get("NO_COLOR"):
        return f"\033[{_COLOURS[index % len(_COLOURS)]}m{name}\033[0m | "
    return f"{name} | "
