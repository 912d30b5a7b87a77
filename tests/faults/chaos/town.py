"""The cluster under chaos: workers of all roles, two masters, and wires between them that can be cut.

pd-master-0 and the prefill workers reach the others through wires, pd-master-1 directly: a worker that is gone refuses
the connections of one and only breaks those of the other.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.chaos.size import Size
from tests.integration.cluster import Process, http_get
from tests.integration.proxy import Proxy
from tests.ports import free_ports

NUM_MASTERS = 2
READY_S = 120.0
DRAIN_S = 6.0
_ASK_TIMES = 5
LAYOUTS = (
    {"prefill": 2, "decode": 2},
    {"prefill": 2, "decode": 3},
    {"prefill": 2, "decode": 2, "mixed": 1},
    {"mixed": 3},
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What kind of cluster it is; drawn from the seed."""

    layout: dict[str, int]
    worker_options: tuple[str, ...]
    master_options: tuple[str, ...]
    two_ranks: str
    """A worker whose engine is two processes; none has this name where all have one."""
    is_shared: bool
    """Whether the last master is two processes that share its ports."""
    has_tools: bool
    """Whether the model's chat template is to know tools and thoughts."""


def random_plan(chance: random.Random, size: Size) -> Plan:
    """Small pages, so that a prompt's KV crosses in many."""
    worker = ["--dtype", "float32", "--threads", "1", "--chunk-tokens", "64", "--reservation-lease-s", "5"]
    worker += ["--prior-output-tokens", "1", "--max-context-tokens", str(size.context), "--drain-s", str(DRAIN_S)]
    worker += ["--kv-pool-tokens", str(chance.choice(size.pools)), "--engine-stall-s", "3"]
    worker += ["--transfer-page-bytes", "65536", "--transfer-pages", "4", "--transfer-depth", "2"]
    worker += ["--host-cache-gib", str(chance.choice(size.host_gib))]
    worker += chance.choice((["--no-prefix-cache"], [], [])) + chance.choice((["--verify-kv"], []))
    master = ["--local-prefill-tokens", str(chance.choice((0, 256))), "--deadline-s", "120", "--queue-budget-s", "90"]
    two_ranks = chance.choice(("", "", "prefill-1", "decode-0", "mixed-0")) if size.has_two_ranks else ""
    master += ["--drain-s", "10"]
    layout, is_shared, has_tools = chance.choice(LAYOUTS), chance.random() < 0.4, chance.random() < 0.5
    return Plan(layout, tuple(worker), tuple(master), two_ranks, is_shared=is_shared, has_tools=has_tools)


@dataclass
class Town:
    """Used as an asynchronous context; the wires run in the test's event loop."""

    model: Path
    logs: Path
    plan: Plan
    processes: dict[str, Process] = field(default_factory=dict)
    wires: dict[str, Proxy] = field(default_factory=dict)
    """By worker."""
    grpc_ports: dict[str, int] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Processes that a fault holds down; kept by who does the faults, as is the next."""
    in_trouble: set[str] = field(default_factory=set)
    """The same, and those that are not what they were before the fault yet."""

    async def __aenter__(self) -> "Town":
        try:
            await self._lay_out()
            for process in self.processes.values():
                process.start()
            await self.whole()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            if process.popen is not None:
                await asyncio.to_thread(process.kill)
        for wire in self.wires.values():
            await wire.stop()

    async def end(self) -> None:
        """A last drain of all: each ends with status 0, and its engine has accounted for all that it had."""
        for process in self.workers + self.masters:
            assert await asyncio.to_thread(process.stop, 2 * DRAIN_S + 20) == 0, process.tail()

    async def _lay_out(self) -> None:
        names = [f"{role}-{at}" for role, count in self.plan.layout.items() for at in range(count)]
        direct, wired = [], []
        ports = iter(free_ports(3 * len(names) + 2 * NUM_MASTERS))
        for name in names:
            grpc_port, http_port, wire_port = next(ports), next(ports), next(ports)
            wire = self.wires[name] = Proxy(f"127.0.0.1:{grpc_port}")
            await wire.start(wire_port)
            direct.append(f"127.0.0.1:{grpc_port}")
            wired.append(wire.address)
            options = ["--model", str(self.model), "--advertise-address", wire.address, *self.plan.worker_options]
            ranks = ["--tp", "2"] if name == self.plan.two_ranks else []
            self._add(name, name.split("-")[0], grpc_port, http_port, options + ranks)
        for at, addresses in enumerate((wired, direct)):
            options = ["--workers", ",".join(addresses), *self.plan.master_options]
            options += ["--processes", str(self._num_processes(f"pd-master-{at}"))]
            self._add(f"pd-master-{at}", "pd-master", next(ports), next(ports), options)

    def _num_processes(self, master: str) -> int:
        return 2 if self.plan.is_shared and master == f"pd-master-{NUM_MASTERS - 1}" else 1

    def _add(self, name: str, command: str, grpc_port: int, http_port: int, options: list[str]) -> None:
        network = ["--host", "127.0.0.1", "--grpc-port", str(grpc_port), "--http-port", str(http_port)]
        self.grpc_ports[name] = grpc_port
        self.processes[name] = Process(name, [command, *network, *options], self.logs / f"{name}.log", http_port)

    # ---------------------------------------------------------------------------------------------------- what there is

    @property
    def workers(self) -> list[Process]:
        """All workers."""
        return [process for name, process in self.processes.items() if not name.startswith("pd-master")]

    @property
    def masters(self) -> list[Process]:
        """All masters."""
        return [process for name, process in self.processes.items() if name.startswith("pd-master")]

    def of_role(self, role: str) -> list[Process]:
        """The workers of a role."""
        return [process for name, process in self.processes.items() if name.startswith(f"{role}-")]

    # ---------------------------------------------------------------------------------------------------------- waiting

    async def whole(self) -> None:
        """Until every master has a session to every worker that no fault holds down, and all their pairs are proven.
        Raises AssertionError when that takes too long."""
        deadline = time.monotonic() + READY_S
        while missing := await asyncio.to_thread(self._missing):
            assert time.monotonic() < deadline, f"not whole again within {READY_S:.0f} s: {missing}"
            await asyncio.sleep(0.2)

    def _missing(self) -> str:
        """What is not as it should be; empty where all is well."""
        up = [worker for worker in self.workers if worker.name not in self.down]
        masters = [master for master in self.masters if master.name not in self.down]
        for process in masters + up:
            assert process.running or process.name in self.down, f"{process.name} ended by itself:\n{process.tail()}"
            if not process.ready():
                return f"{process.name} is not ready"
        num_sessions = sum(self._num_processes(master.name) for master in masters)
        for worker in up:
            if worker.value("sluice_sessions") < num_sessions:
                return f"{worker.name} has no session to each master"
        num_of = {role: sum(name.startswith(role) for name in (one.name for one in up)) for role in self.plan.layout}
        pairs = num_of.get("prefill", 0) * num_of.get("decode", 0) + num_of.get("mixed", 0)
        for master in masters * _ASK_TIMES:  # each of its processes answers some
            body = http_get(f"http://127.0.0.1:{master.http_port}/get_server_info")[1]
            info = json.loads(body or '{"models": [], "num_pairs": 0}')
            if not info["models"] or info["num_pairs"] < pairs:
                return f"{master.name} knows {info['models']} and {info['num_pairs']} of {pairs} pairs"
        return ""
