"""The processes of `sluice up`: heard with their names, stopped in order, and none outlives the crew."""

import asyncio
import io
import sys

import psutil
import pytest

from services.cli.crew import Crew
from services.cli.plan import Process

_SERVE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(0)))
print("up")
signal.pause()
"""
_DEAF = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up")
while True: signal.pause()
"""


def _process(name: str, code: str) -> Process:
    return Process(name, (sys.executable, "-u", "-c", code), "")


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _until_up(out: io.StringIO, count: int) -> None:
    async with asyncio.timeout(60):
        while out.getvalue().count("up\n") < count:  # noqa: ASYNC110 - the processes' own output is what is waited for
            await asyncio.sleep(0.01)


async def test_crew_stops_the_gateway_first_and_each_line_carries_its_name() -> None:
    out = io.StringIO()
    crew = Crew.start([_process("decode-0", _SERVE), _process("pd_master", _SERVE)], out)
    await _until_up(out, 2)
    await crew.stop(drain_s=60.0)
    assert await crew.statuses() == {"decode-0": 0, "pd_master": 0}
    assert out.getvalue().splitlines()[-2:] == ["pd_master | bye", "decode-0  | bye"]


async def test_first_exit_names_the_process_and_its_status() -> None:
    out = io.StringIO()
    crew = Crew.start([_process("decode-0", "import sys; sys.exit(7)"), _process("pd_master", _SERVE)], out)
    async with asyncio.timeout(60):
        assert await crew.first_exit() == ("decode-0", 7)
    await _until_up(out, 1)
    await crew.stop(drain_s=60.0)
    assert (await crew.statuses())["pd_master"] == 0


async def test_process_that_ignores_the_request_is_killed_when_stopping_is_cut_short() -> None:
    out = io.StringIO()
    crew = Crew.start([_process("decode-0", _DEAF), _process("pd_master", _DEAF)], out)
    await _until_up(out, 2)
    stopping = asyncio.create_task(crew.stop(drain_s=100.0))
    await asyncio.sleep(0)
    stopping.cancel()
    async with asyncio.timeout(60):
        assert await crew.statuses() == {"decode-0": 137, "pd_master": 137}


async def test_what_a_lost_process_had_started_holds_nothing_up_and_is_killed() -> None:
    child = "import signal; print('up'); signal.pause()"
    parent = f"import os, subprocess, sys; print(subprocess.Popen([sys.executable, '-uc', {child!r}]).pid); os._exit(3)"
    out = io.StringIO()
    crew = Crew.start([_process("decode-0", parent), _process("pd_master", _SERVE)], out)
    await _until_up(out, 2)
    async with asyncio.timeout(60):
        assert await crew.first_exit() == ("decode-0", 3)
        orphan = int(out.getvalue().split("decode-0  | ")[1].split()[0])
        assert _is_alive(orphan)
        await crew.stop(drain_s=60.0)
        while _is_alive(orphan):  # noqa: ASYNC110 - a process that is not ours tells us nothing
            await asyncio.sleep(0.01)


async def test_variable_of_the_parent_command_does_not_reach_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HTTP_PORT", "1")
    monkeypatch.setenv("SLUICE_CACHE", "/c")
    out = io.StringIO()
    code = "import os; print([k for k in os.environ if k.startswith('SLUICE_')])"
    crew = Crew.start([_process("pd_master", code)], out)
    await crew.statuses()
    assert out.getvalue() == "pd_master | ['SLUICE_CACHE']\n"
