"""The whole system in one thread. Every action takes numbers, so that anything that draws numbers can drive it.

`quiet` then lets everything run without further faults, and says what must hold at the end.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from services.common.errors import OverloadedError
from services.common.messages import PROTOCOL, MasterRef, Role, WorkerRef
from services.common.peer_messages import PrefillHello
from services.common.request import Request, SamplingParams, StopParams
from tests.unit.protocol.sim.master import Client, Master
from tests.unit.protocol.sim.net import Session
from tests.unit.protocol.sim.worker import Worker

TICK_S = 0.25
MAX_ROUNDS = 200
NEVER_S = 1e6
"""Limits of most requests: a hang must show as one, not as an orderly DeadlineError."""
T = TypeVar("T")


def pick(items: Sequence[T], number: int) -> T | None:
    """One of them, or none where there are none."""
    return items[number % len(items)] if items else None


class Simulation:
    """See the module."""

    def __init__(self, roles: dict[str, Role], num_masters: int = 1) -> None:
        self.now = 0.0
        self._numbers = itertools.count(1)
        self._roles = roles
        self._requests: dict[str, Request] = {}
        self.workers: dict[str, Worker | None] = {}
        self.masters: dict[str, Master] = {}
        self.sessions: list[Session] = []
        self.clients: list[Client] = []
        for worker_id in roles:
            self.start_worker(worker_id)
        for number in range(num_masters):
            self.start_master(f"m{number}")

    def request(self, request_id: str) -> Request:
        """For the engines. An id has 16 bytes in payloads; that of a choice alone begins as its request's."""
        assert len(bytes.fromhex(request_id)) == 16
        return self._requests[request_id[:24]]

    @property
    def alive(self) -> list[Worker]:
        """Workers whose process runs."""
        return [worker for worker in self.workers.values() if worker is not None]

    @property
    def at_work(self) -> list[Worker]:
        """Those whose engine runs."""
        return [worker for worker in self.alive if not worker.is_stalled]

    # ---------------------------------------------------------------------------------------------------- processes

    def start_worker(self, worker_id: str) -> None:
        """A new incarnation, unless one runs."""
        if self.workers.get(worker_id) is None:
            ref = WorkerRef(worker_id, f"i{next(self._numbers)}")
            self.workers[worker_id] = Worker(ref, self._roles[worker_id], self)

    def kill_worker(self, number: int) -> None:
        """The process is gone, with all its sessions."""
        worker = pick(self.alive, number)
        if worker is not None:
            self.workers[worker.ref.worker_id] = None
            self._cut_off(worker)

    def start_master(self, master_id: str) -> None:
        """A new incarnation in place of the one there was: its clients are gone with it."""
        before = self.masters.get(master_id)
        if before is not None:
            for client in before.clients.values():
                client.is_gone = client.is_over = True
            self._cut_off(before)
        self.masters[master_id] = Master(MasterRef(master_id, f"i{next(self._numbers)}"))

    def _cut_off(self, node: Worker | Master) -> None:
        for session in self.sessions:
            if session.client is node or session.server is node:
                session.break_off(self.now)
        self.sessions = [one for one in self.sessions if one.server is not node]

    def drain(self, number: int) -> None:
        """A worker takes nothing new any more."""
        worker = pick(self.alive, number)
        if worker is not None:
            worker.drain(self.now)

    def stall(self, number: int) -> None:
        """An engine stands still."""
        worker = pick(self.at_work, number)
        if worker is not None:
            worker.is_stalled = True

    def wake(self, number: int) -> None:
        """An engine comes to itself."""
        worker = pick([one for one in self.alive if one.is_stalled], number)
        if worker is not None:
            worker.is_stalled = False

    # ------------------------------------------------------------------------------------------------------ clients

    def submit(self, number: int, num_choices: int, limit: int, *, with_stop: bool) -> Client | None:
        """A client comes. The prompt, of one token or several, says after how many the model ends by itself."""
        master = pick(list(self.masters.values()), number)
        assert master is not None
        prompt = [1 + number % 7, number % 50, number % 11, number % 13, number % 17][: 1 + number // 7 % 5]
        stop = StopParams(limit, stop_strings=("stop",) if with_stop else (), ignore_eos=number % 3 == 0)
        request = Request(
            f"{next(self._numbers):024x}{0:08x}",
            "m",
            prompt,
            SamplingParams(num_prompt_logprobs=0 if number % 4 == 1 else None),
            stop,
            num_choices=num_choices,
            queue_budget_s=NEVER_S if number % 10 else 10.0,
            deadline_s=NEVER_S if number % 11 else 20.0,
        )
        self._requests[request.request_id[:24]] = request
        master.draw = (number % 97) / 97
        client = master.submit(request, self.now)
        self.clients.append(client)
        return client

    def abort(self, number: int) -> None:
        """A client goes away."""
        running = [(m, c) for m in self.masters.values() for c in m.clients.values() if not c.is_over]
        found = pick(running, number)
        if found is not None:
            found[0].abort(found[1])

    # ------------------------------------------------------------------------------------------------------ network

    def connect(self, number: int) -> None:
        """One of the sessions that should stand and does not is tried."""
        missing = pick(self._missing(), number)
        if missing is not None:
            missing()

    def _missing(self) -> list[Callable[[], None]]:
        tries: list[Callable[[], None]] = []
        for master in self.masters.values():
            for worker_id in self._roles:
                link = master.links.get(worker_id)
                if link is None or link.dead:
                    tries.append(partial(self._connect_master, master, worker_id))
        for worker in self.alive:
            for wanted in worker.wanted:
                target = self.workers[wanted.worker.worker_id]
                if target is not None and target.ref == wanted.worker and not self._has_pair(worker, target):
                    tries.append(partial(self._connect_pair, worker, target))
        return tries

    def _has_pair(self, worker: Worker, target: Worker) -> bool:
        return any(one.client is worker and one.server is target and not one.dead for one in self.sessions)

    def _connect_master(self, master: Master, worker_id: str) -> None:
        target = self.workers[worker_id]
        if target is None:
            master.refused(worker_id)
            return
        session = master.links[worker_id] = Session(master, target)
        session.say(master, master.hello(worker_id))
        self.sessions.append(session)

    def _connect_pair(self, worker: Worker, target: Worker) -> None:
        session = Session(worker, target)
        session.say(worker, PrefillHello(PROTOCOL, worker.ref, "g"))
        self.sessions.append(session)

    def deliver(self, number: int, *, repeat: bool = False) -> None:
        """One message of one direction of one session arrives."""
        self._cut_frames()
        ways = [(one, True) for one in self.sessions if one.to_server]
        ways += [(one, False) for one in self.sessions if one.to_client]
        found = pick(ways, number)
        if found is not None:
            found[0].deliver(to_server=found[1], now=self.now, repeat=repeat)

    def _cut_frames(self) -> None:
        for session in self.sessions:
            if isinstance(session.server, Worker) and not session.dead and not session.to_client:
                session.server.cut(session)

    def break_session(self, number: int) -> None:
        """A stream breaks."""
        found = pick([one for one in self.sessions if not one.dead], number)
        if found is not None:
            found.break_off(self.now)

    def notice(self, number: int) -> None:
        """A server sees that a stream has broken."""
        found = pick([one for one in self.sessions if one.dead and not one.server_noticed], number)
        if found is not None:
            found.notice(self.now)
            self.sessions.remove(found)

    # ----------------------------------------------------------------------------------------------------- in workers

    def propose(self, number: int) -> None:
        """A Router lets a job in."""
        found = pick([(worker, job) for worker in self.alive for job in worker.engine.proposable], number)
        if found is not None:
            found[0].engine.propose(found[1])

    def refuse(self, number: int) -> None:
        """A Router gives a job up."""
        found = pick([(worker, job) for worker in self.alive for job in worker.engine.proposable], number)
        if found is not None:
            found[0].refuse(found[1], OverloadedError("full", retry_after_s=1.0), self.now)

    def reserve_first(self, number: int) -> None:
        """A Router wants a grant first."""
        prefills = [worker for worker in self.alive if worker.role is Role.PREFILL]
        found = pick([(worker, job) for worker in prefills for job in worker.engine.proposable], number)
        if found is not None:
            found[0].reserve_first(found[1], self.now)

    def process(self, number: int, *, defer: bool = False) -> None:
        """An engine takes a command."""
        found = pick([worker for worker in self.at_work if worker.engine.commands], number)
        if found is not None:
            found.engine.process(defer=defer)

    def event(self, number: int) -> None:
        """A core takes an event of its engine."""
        found = pick([worker for worker in self.at_work if worker.engine.events], number)
        if found is not None:
            found.take_event(self.now)

    def step(self, number: int, num_tokens: int = 1) -> None:
        """An engine computes something."""
        found = pick([(worker, job) for worker in self.at_work for job in worker.engine.steppable], number)
        if found is not None:
            found[0].engine.step(found[1], num_tokens)

    def push(self, number: int) -> None:
        """A prompt's KV crosses."""
        found = pick([(worker, job) for worker in self.at_work for job in worker.engine.pushable], number)
        if found is None:
            return
        worker, job = found[0], found[0].engine.jobs[found[1]]
        assert job.place is not None
        target = self.workers[job.place.peer_id]
        if target is None:
            worker.engine.fail_transfer(job.job_id)
        elif not target.is_stalled:
            job.pushed = True
            target.engine.receive(job.place.key, job.token_ids)

    def preempt(self, number: int) -> None:
        """An engine takes a sequence's slots, or those of a prompt that it computes."""
        found = pick([(worker, *which) for worker in self.at_work for which in worker.engine.preemptible], number)
        if found is not None:
            found[0].engine.preempt(found[1], found[2])

    def revoke(self, number: int) -> None:
        """An engine takes a reservation back."""
        found = pick([(worker, job) for worker in self.at_work for job in worker.engine.revocable], number)
        if found is not None:
            found[0].engine.revoke(found[1])

    def fail_transfer(self, number: int) -> None:
        """A transfer fails, as one of its ends sees it."""
        found = pick([(worker, job) for worker in self.alive for job in worker.engine.breakable], number)
        if found is not None:
            found[0].engine.fail_transfer(found[1])

    # --------------------------------------------------------------------------------------------------------- time

    def advance(self, seconds: float) -> None:
        """Time passes, with every timer of every process."""
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            for master in self.masters.values():
                master.tick(self.now)
                if self.now % 1.0 == 0:
                    master.beat()
            if self.now % 1.0 == 0:
                for worker in self.alive:
                    worker.beat(self.now)

    # ------------------------------------------------------------------------------------------------------ progress

    def flow(self, draw: random.Random, num_actions: int) -> None:
        """What happens by itself: messages arrive, engines work, sessions are tried, time passes; in any order."""
        actions: dict[Callable[[int], None], int] = {
            self.deliver: 90,
            self.process: 12,
            self.event: 14,
            self.propose: 8,
            self.step: 8,
            self._step_several: 2,
            self.push: 5,
            self.connect: 6,
            self._advance_little: 2,
        }
        for action in draw.choices(list(actions), list(actions.values()), k=num_actions):
            action(draw.randrange(10**6))

    def _step_several(self, number: int) -> None:
        self.step(number, 1 + number % 3)

    def _advance_little(self, number: int) -> None:
        self.advance(TICK_S * (1 + number % 4))

    # -------------------------------------------------------------------------------------------------------- the end

    def settle(self) -> None:
        """Sessions stand, heartbeats are in, pairs are proven."""
        for _ in range(4):
            self._round()

    def quiet(self) -> None:
        """No more faults: every request must end, and nothing may be left of any."""
        for _ in range(MAX_ROUNDS):
            self._round()
            if all(client.is_over for client in self.clients):
                break
        else:
            hanging = [client.request.request_id for client in self.clients if not client.is_over]
            raise AssertionError(f"requests hang: {hanging}")
        for _ in range(60):
            self._round()
        self._check_empty()

    def _round(self) -> None:
        for worker_id in self._roles:
            self.start_worker(worker_id)
        for worker in self.alive:
            worker.is_stalled = False
        for attempt in self._missing():
            attempt()
        for session in [one for one in self.sessions if one.dead]:
            session.notice(self.now)
            self.sessions.remove(session)
        self._deliver_all()
        for worker in self.alive:
            self._work(worker)
        self._deliver_all()
        self.advance(0.5)

    def _deliver_all(self) -> None:
        self._cut_frames()
        while any(one.to_server or one.to_client for one in self.sessions):
            self.deliver(0)
            self._cut_frames()

    def _work(self, worker: Worker) -> None:
        engine = worker.engine
        for job_id in engine.proposable:
            engine.propose(job_id)
        while engine.commands or engine.events:
            while engine.commands:
                engine.process()
            while engine.events:
                worker.take_event(self.now)
        for job_id in engine.steppable:
            engine.step(job_id)
        for _ in engine.pushable:
            self.push(0)

    def _check_empty(self) -> None:
        for worker in self.alive:
            where = f"{worker.ref} ({worker.role.value})"
            assert not worker.engine.jobs, f"{where}: the engine holds {list(worker.engine.jobs.values())}"
            assert not worker.engine.waiting, f"{where}: the Router holds {list(worker.engine.waiting)}"
            assert not worker.core.num_attempts, f"{where}: the core knows {worker.core.num_attempts} attempts"
            assert not worker.core.num_tombstones, f"{where}: tombstones are left"
            assert not worker.core.num_jobs, f"{where}: the core knows jobs"
        for master in self.masters.values():
            assert not len(master.core), "the master knows requests"
            assert not master.core.num_attempts, "the master knows attempts"
            assert not master.pending.num_workers, "dispatches count for ever"
