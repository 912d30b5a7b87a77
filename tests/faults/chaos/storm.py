"""One round: every case on the quiet cluster, then all of them again and again under faults, then nothing is left."""

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.faults.chaos.answers import Answer
from tests.faults.chaos.cases import Case, hang_up_or_stay
from tests.faults.chaos.clients import Clients, shown
from tests.faults.chaos.faults import DOWN, ENDS_CLIENTS, Faults
from tests.faults.chaos.size import Size
from tests.faults.chaos.town import Town
from tests.faults.chaos.verdict import difference, is_transport_error
from tests.integration.cluster import Process
from tests.integration.leaks import workers_hold_nothing

IN_PEACE = 2
"""Clients that ask when all is quiet."""
GIVEN_BACK_S = 30.0
"""Leases, tombstones and masters' silences have run out by then."""
MAX_CRASHES = 2
_EXPECTED = r"(the worker ends: .*engine ended with status -9|process \d ended with status -9; it is started again)"
_PREEMPTED = re.compile(r" preempted \S+ attempt \d+ to find slots")
_ACTIVE = re.compile(r"^sluice_gateway_active_requests(?:\{.*\})? (\S+)$", re.MULTILINE)
_WRONG = re.compile(
    rf"^(\d\d:\S+ (ERROR|CRITICAL) |.*(Traceback|Fatal Python|terminate called|core dumped))(?!.*{_EXPECTED})"
    r"(.*\n){0,30}",
    re.MULTILINE,
)
"""What no fault may have a process log, with some lines behind it. UCX has a word of its own for lost peers."""


@dataclass
class Storm:
    """Judges each answer as it comes."""

    town: Town
    seed: int
    clients: dict[str, Clients]
    """By master."""
    size: Size
    quiet: dict[int, Answer] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    async def round(self, cases: list[Case], seconds: float) -> None:
        """Raises AssertionError where a process ends by itself or something is left behind; answers that are wrong
        are in `failures`."""
        self.seed += 1
        self.quiet.clear()
        self.quiet.update(await self._ask_in_peace(cases))
        await self._troubled(cases, seconds)
        await self.town.whole()
        self._tally()
        again = random.Random(self.seed).sample(cases, self.size.num_again)
        for number, answer in (await self._ask_in_peace(again)).items():
            if found := difference(self.quiet[number], answer, is_cut=False):
                self.failures.append(f"when all was quiet again: {found}\n  {shown(cases[number])}")
        await self._nothing_left()

    async def _ask_in_peace(self, cases: list[Case]) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        left = iter(cases)

        async def client() -> None:
            for case in left:
                answers[case.number] = await self._ask_one_in_peace(case)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_PEACE):
                tasks.create_task(client())
        return answers

    async def _ask_one_in_peace(self, case: Case) -> Answer:
        answer = await self.clients[random.choice(list(self.clients))].ask(case)
        assert answer.status in (200, 400), f"{answer.status} {answer.error}\n{shown(case)}"
        assert not answer.error or answer.status == 400, f"{answer.error}\n{shown(case)}"
        if answer.status == 200:
            answer.check_shape()
        return answer

    async def _troubled(self, cases: list[Case], seconds: float) -> None:
        faults = Faults(self.town, self.seed, self.size.master_calm_s)
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(faults.run())
            asking = [tasks.create_task(self._client(at, cases, faults, until)) for at in range(self.size.at_once)]
            await asyncio.wait(asking)
            faults.stop()
        self.counts.update(f"fault {one.kind}" for one in faults.done)

    async def _client(self, number: int, cases: list[Case], faults: Faults, until: float) -> None:
        chance = random.Random(f"{self.seed} client {number}")
        while time.monotonic() < until:
            case = hang_up_or_stay(chance.choice(cases), chance)
            masters = [one.name for one in self.town.masters if one.name not in self.town.in_trouble]
            master = chance.choice(masters)
            began = time.monotonic()
            try:
                answer = await self.clients[master].ask(case)
            except (AssertionError, TimeoutError) as error:
                self.failures.append(f"{error!r}\n  {shown(case)}")
                continue
            self._judge(case, answer, master, faults, began)
            await asyncio.sleep(chance.uniform(0, 0.2))

    def _judge(self, case: Case, answer: Answer, master: str, faults: Faults, began: float) -> None:
        is_cut = case.hang_up_after is not None
        found = difference(self.quiet[case.number], answer, is_cut=is_cut)
        self.counts["cut short" if is_cut else f"status {answer.status}"] += 1
        self.counts["tool calls"] += sum(len(choice.calls) for choice in answer.choices.values())
        self.counts["with thoughts"] += any(choice.thoughts for choice in answer.choices.values())
        if not found:
            return
        now = time.monotonic()
        met = faults.between(began, now)
        is_lost = is_transport_error(answer) or "shutting down" in answer.error
        if is_lost and any(one.victim == master and one.kind in ENDS_CLIENTS for one in met):
            self.counts["lost with its master"] += 1
        elif "crashed or stood still" in answer.error and sum(one.kind in DOWN for one in met) >= MAX_CRASHES:
            self.counts["poison rule"] += 1
        else:
            when = f"at {time.strftime('%X')} on {master} for {now - began:.1f} s"
            self.failures.append(f"{found}\n  {shown(case)}\n  {when}, faults: {[str(one) for one in met]}")

    def _tally(self) -> None:
        """How hard the pools were pressed. Metrics say it of the engines that have lived on, logs of all."""
        for name in ("restored_sequences", "evicted_tokens"):
            total = sum(worker.value(f"sluice_engine_{name}_total") for worker in self.town.workers)
            self.counts[name] += int(total)
        self.counts["preemptions"] = sum(len(_PREEMPTED.findall(_log_of(worker))) for worker in self.town.workers)

    async def _nothing_left(self) -> None:
        await asyncio.to_thread(workers_hold_nothing, self.town.workers, GIVEN_BACK_S)
        for master in self.town.masters:
            active = _ACTIVE.findall(await asyncio.to_thread(master.metrics))
            assert set(active) == {"0.0"}, f"{master.name} has {active} requests in work"
        self.read_logs()

    def read_logs(self) -> None:
        """What stands there is a failure."""
        for process in self.town.processes.values():
            found = _WRONG.search(_log_of(process))
            if found:
                self.failures.append(f"{process.name} logged\n{found.group(0)}")


def _log_of(process: Process) -> str:
    return process.log.read_text(errors="replace")
