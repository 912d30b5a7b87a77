"""Random faults of random processes, each undone before the same role meets the next one.

At most one worker of a role is in trouble at a time, and the next one is only when all masters use the last one again:
so there is always a way for every request, and none may fail but by R12.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.faults.chaos.town import DRAIN_S, Town
from tests.integration.cluster import Process

CALM_S = (0.0, 3.0)
"""Between two faults of a role of workers."""
PAUSE_S = (0.3, 8.0)
AWAY_S = (0.0, 2.5)
EXIT_S = 30.0
ENDED_STARTING = (0, -signal.SIGTERM)
"""Statuses of a process that is told to end early; at first it is Python, which has not heard of draining."""
SHARE_BACK_S = 2.0
"""Until a master's process is missed and started again."""


@dataclass(slots=True)
class Fault:
    """What was done, for explaining what came of it."""

    kind: str
    victim: str
    began: float
    ended: float = float("inf")


class Faults:
    """Run it beside the clients; `stop` lets the faults under way end."""

    def __init__(self, town: Town, seed: int, master_calm_s: tuple[float, float]) -> None:
        self.done: list[Fault] = []
        self._is_over = asyncio.Event()
        kinds = [(role, town.of_role(role), WORKER_DEEDS, CALM_S) for role in town.plan.layout]
        kinds.append(("pd-master", town.masters, MASTER_DEEDS, master_calm_s))
        self._troubles = [
            _Trouble(town, random.Random(f"{seed} {role}"), processes, deeds, calm_s, self.done, self._is_over)
            for role, processes, deeds, calm_s in kinds
        ]

    async def run(self) -> None:
        """Until `stop`. Raises what must not come of a fault."""
        async with asyncio.TaskGroup() as tasks:
            for trouble in self._troubles:
                tasks.create_task(trouble.run())

    def stop(self) -> None:
        """No more faults."""
        self._is_over.set()

    def between(self, began: float, ended: float) -> list[Fault]:
        """Faults that overlapped a time."""
        return [one for one in self.done if one.began <= ended and one.ended >= began]


@dataclass
class _Trouble:
    """All that happens to the processes of one role, one after the other."""

    town: Town
    chance: random.Random
    processes: list[Process]
    deeds: "dict[str, Deed]"
    calm_s: tuple[float, float]
    done: list[Fault]
    is_over: asyncio.Event

    async def run(self) -> None:
        while not await self._over_within(self.chance.uniform(*self.calm_s)):
            kind = self.chance.choices(list(self.deeds), [WEIGHTS.get(each, 1.0) for each in self.deeds])[0]
            victim = self.chance.choice(self.processes)
            fault = Fault(kind, victim.name, time.monotonic())
            self.done.append(fault)
            self.town.down.add(victim.name)
            self.town.in_trouble.add(victim.name)
            await self.deeds[kind](self, victim)
            self.town.down.discard(victim.name)
            await self.town.whole()
            self.town.in_trouble.discard(victim.name)
            fault.ended = time.monotonic()

    async def _over_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.is_over.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------------------------------------ deeds

    async def _away(self) -> None:
        await asyncio.sleep(self.chance.uniform(*AWAY_S))

    async def kill(self, victim: Process) -> None:
        """`kill -9` of a whole pod."""
        await asyncio.to_thread(victim.kill)
        await self._away()
        victim.start()

    async def kill_twice(self, victim: Process) -> None:
        """The pod that comes back is killed as it starts."""
        await self.kill(victim)
        await asyncio.sleep(self.chance.uniform(0.0, 6.0))
        await self.kill(victim)

    async def kill_share(self, victim: Process) -> None:
        """One of a master's processes, or the only one; it is started again."""
        children = _children(victim)
        if children:
            os.kill(self.chance.choice(children), signal.SIGKILL)
            await asyncio.sleep(SHARE_BACK_S)
        else:
            await self.kill(victim)

    async def kill_engine(self, victim: Process) -> None:
        """Its control process ends by itself then, and says that it failed."""
        os.kill(victim.engine_pid(), signal.SIGKILL)
        assert await _exit_status(victim) == 1
        victim.start()

    async def pause(self, victim: Process) -> None:
        """A pod that stands still for a while."""
        victim.pause()
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))
        victim.resume()

    async def pause_engine(self, victim: Process) -> None:
        """Only its device stands still."""
        victim.pause_engine()
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))
        victim.resume_engine()

    async def pause_control(self, victim: Process) -> None:
        """Only its control process stands still."""
        assert victim.popen is not None
        os.kill(victim.popen.pid, signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))
        os.kill(victim.popen.pid, signal.SIGCONT)

    async def drain(self, victim: Process) -> None:
        """A rollout: SIGTERM, and another one starts."""
        assert victim.popen is not None
        victim.popen.terminate()
        assert await _exit_status(victim) == 0, f"{victim.name} did not drain"
        await self._away()
        victim.start()

    async def drain_twice(self, victim: Process) -> None:
        """A rollout that is taken back while the new pod starts."""
        await self.drain(victim)
        await asyncio.sleep(self.chance.uniform(0.0, 6.0))
        assert victim.popen is not None
        victim.popen.terminate()
        assert await _exit_status(victim) in ENDED_STARTING, f"{victim.name} did not end as it started"
        await self._away()
        victim.start()

    async def cut(self, victim: Process) -> None:
        """Its connections break, some of them several times."""
        for _ in range(self.chance.randint(1, 3)):
            self.town.wires[victim.name].cut()
            await asyncio.sleep(self.chance.uniform(0.0, 1.0))

    async def hold(self, victim: Process) -> None:
        """Its connections carry nothing for a while; those that time out are made anew, to no avail."""
        wire = self.town.wires[victim.name]
        wire.hold()
        await asyncio.sleep(self.chance.uniform(*PAUSE_S))
        wire.release()


Deed: TypeAlias = Callable[[_Trouble, Process], Awaitable[None]]


def _children(process: Process) -> list[int]:
    assert process.popen is not None
    pid = process.popen.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def _exit_status(process: Process) -> int:
    assert process.popen is not None
    deadline = time.monotonic() + EXIT_S + DRAIN_S
    while (status := process.popen.poll()) is None:
        assert time.monotonic() < deadline, f"{process.name} does not end:\n{process.tail()}"
        await asyncio.sleep(0.05)
    return status


DOWN = ("kill", "kill_twice", "kill_engine", "pause", "pause_engine")
"""Faults in which an engine crashes or stands still (R12)."""
WORKER_DEEDS: dict[str, Deed] = {
    "kill": _Trouble.kill,
    "kill_twice": _Trouble.kill_twice,
    "kill_engine": _Trouble.kill_engine,
    "pause": _Trouble.pause,
    "pause_engine": _Trouble.pause_engine,
    "pause_control": _Trouble.pause_control,
    "drain": _Trouble.drain,
    "drain_twice": _Trouble.drain_twice,
    "cut": _Trouble.cut,
    "hold": _Trouble.hold,
}
MASTER_DEEDS: dict[str, Deed] = {
    "kill": _Trouble.kill,
    "kill_share": _Trouble.kill_share,
    "drain": _Trouble.drain,
    "drain_twice": _Trouble.drain_twice,
    "pause": _Trouble.pause,
}
WEIGHTS = {
    "cut": 3.0,
    "hold": 2.0,
    "pause": 2.0,
    "pause_engine": 2.0,
    "pause_control": 2.0,
    "kill_twice": 0.5,
    "drain_twice": 0.5,
}
"""How often they are drawn, 1 for the others: those that need no start of a process leave time for more."""
ENDS_CLIENTS = ("kill", "kill_share", "drain", "drain_twice")
"""Faults of a master that its clients notice."""
