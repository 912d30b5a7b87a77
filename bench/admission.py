"""How long the Router takes to decide: one admission beside n running sequences, and a plan over a full queue.

    python -m bench.admission                      # table
    python -m bench.admission --json out.json      # the same figures for machines
    python -m bench.admission --running 1024 16384 --waiting 1000 --repeat 300
    python -m bench.admission --clock cpu          # on a machine that others use too: this thread's CPU time

`what if` is the peak-memory question for one newcomer, asked when since the last one a step was made, a sequence ended
and one joined. `plan` is the pure plan over a queue when all of it, half of it, or nothing more fits. `decide one` and
`decide` are the same through `Router.decide`: predictions brought up to date (all of them every 16 steps), plan,
proposals to the engine, predicted waits.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from services.router import events
from services.router.peak_ledger import PeakLedger
from services.router.peak_memory import Joiners, PeakCurve
from services.router.router import Outlets, Router
from services.router.scheduler import PoolView, plan
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig, WorkKind

_CAPACITY = 10**9
"""No limit of its own: `leave_room` sets what is free."""
_FITS = {1.0: "all fit", 0.5: "half fit", 0.0: "none fits"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    num_running: int
    num_waiting: int
    median_ms: float
    p99_ms: float


class Worker:
    """A Router beside n decoding sequences, prompts and outputs of lengths as chat has them."""

    def __init__(self, num_running: int) -> None:
        self._rng = np.random.default_rng(1)
        self._numbers = itertools.count()
        self._proposed: list[QueuedWork] = []
        self._live: list[QueuedWork] = []
        config = RouterConfig(_CAPACITY, max_running=10**6, max_waiting=10**6, max_bypass_s=1e9, max_bypasses=10**9)
        self.router = Router(config, Outlets(self._proposed.append, lambda *_: None, lambda _: None))
        self._run(3000)
        while self._live:
            self._end(0)
        self._run(num_running)

    def _run(self, count: int) -> None:
        self.enqueue(count, under_way=True)
        self.router.decide()
        self.settle()

    def enqueue(self, count: int, *, under_way: bool = False) -> None:
        """Reservations that wait."""
        for _ in range(count):
            produced = min(int(self._rng.exponential(250)), 4000) if under_way else 0
            prompt = int(self._rng.lognormal(6, 0.8)) + 1
            self.router.enqueue(
                QueuedWork(next(self._numbers), WorkKind.RESERVATION, time.monotonic(), prompt, 4096, produced)
            )

    def settle(self) -> None:
        """The engine takes what was proposed, and it decodes."""
        for work in self._proposed:
            self.router.tell(events.Admitted(work.key, work.prompt_tokens))
            self.router.tell(events.Started(work.key))
        self._live.extend(self._proposed)
        self._proposed.clear()

    def turn_over(self) -> None:
        """A step is made and one sequence ends."""
        self.router.tell(events.Stepped(0.01, len(self._live), 0, held_slots=0))
        self._end(int(self._rng.integers(len(self._live))))

    def _end(self, place: int) -> None:
        self._live[place], self._live[-1] = self._live[-1], self._live[place]
        self.router.tell(events.Finished(self._live.pop().key, 0, int(self._rng.exponential(300)) + 1, natural=True))

    def leave_room(self, share: float) -> None:
        """Let this share of what waits fit beside what runs: the rest of the pool is held by somebody else."""
        load = self.router.load
        running = load.admitted_peak_ratio * _CAPACITY
        free = running + share * (load.demand_ratio * _CAPACITY - running)
        self.router.tell(events.Idle(held_slots=load.held_slots + _CAPACITY - int(free)))

    def withdraw(self) -> None:
        """Take back what was proposed last."""
        for work in self._proposed:
            self.router.tell(events.Gone(work.key))
        self._proposed.clear()


_CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
_clock = ContextVar("clock", default=time.perf_counter)


def timed(prepare: Callable[[], None], act: Callable[[], None], repeat: int) -> tuple[float, float]:
    """Median and 99th percentile of `act` in ms, `prepare` called before each and not counted."""
    gc.collect()
    clock, times = _clock.get(), []
    for _ in range(repeat):
        prepare()
        start = clock()
        act()
        times.append((clock() - start) * 1e3)
    return statistics.median(times), float(np.percentile(times, 99))


def what_if(num_running: int, repeat: int) -> Figure:
    """One admission, the memory question alone."""
    rng, ledger, keys = np.random.default_rng(2), PeakLedger(), itertools.count()

    def join() -> None:
        key = next(keys)
        ledger.add(key, int(rng.integers(1, 4000)), int(rng.integers(1, 2000)))
        ledger.start(key)

    for _ in range(num_running):
        join()
    oldest = itertools.count()

    def prepare() -> None:
        ledger.advance()
        ledger.remove(next(oldest))
        join()

    return Figure("what if", num_running, 1, *timed(prepare, lambda: _ask(ledger), repeat))


def _ask(ledger: PeakLedger) -> None:
    ledger.curve().peak_with_one(1000, 500)


def plan_queue(num_running: int, num_waiting: int, share: float, repeat: int) -> Figure:
    """The pure plan over a queue that has just changed, of which `share` fits."""
    rng = np.random.default_rng(3)
    config = RouterConfig(_CAPACITY, max_running=10**6, max_bypass_s=1e9, max_bypasses=10**9)
    queue, numbers = WaitingQueue(config), itertools.count()

    def push() -> None:
        number = next(numbers)
        work = QueuedWork(number, WorkKind.RESERVATION, number, int(rng.lognormal(6, 0.8)) + 1, 4096)
        queue.push(work, unit=0.5, group=0)

    for _ in range(num_waiting):
        push()
    held, left = rng.integers(1, 4000, num_running), rng.integers(1, 2000, num_running)
    curve = PeakCurve.of(Joiners.of(held, left), now=5)
    lefts = rng.integers(1, 2000, num_waiting)
    demand = curve.peak_with(Joiners(queue.arrays().held, lefts, queue.arrays().growth))
    capacity = int(curve.peak + share * (demand - curve.peak)) + 1

    def prepare() -> None:
        queue.take([len(queue) - 1])
        push()

    def act() -> None:
        arrays = queue.arrays()
        fresh = PeakCurve(curve.now, curve.ends, curve.base, curve.growth)
        plan(queue, Joiners(arrays.held, lefts, arrays.growth), PoolView(fresh, capacity, num_running, 0), config, 0.0)

    return Figure(f"plan, {_FITS[share]}", num_running, num_waiting, *timed(prepare, act, repeat))


def decide_one(num_running: int, repeat: int) -> Figure:
    """One admission, the whole decision."""
    worker = Worker(num_running)

    def prepare() -> None:
        worker.settle()
        worker.turn_over()
        worker.enqueue(1)

    return Figure("decide one", num_running, 1, *timed(prepare, worker.router.decide, repeat))


def decide_queue(num_running: int, num_waiting: int, share: float, repeat: int) -> Figure:
    """The whole decision over a queue of which `share` fits."""
    worker = Worker(num_running)
    worker.enqueue(num_waiting)

    def prepare() -> None:
        worker.withdraw()
        worker.enqueue(num_waiting - worker.router.num_waiting)
        worker.turn_over()
        worker.enqueue(1)
        worker.leave_room(share)

    return Figure(f"decide, {_FITS[share]}", num_running, num_waiting, *timed(prepare, worker.router.decide, repeat))


def main() -> None:
    """Measure, print the table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--running", type=int, nargs="+", default=[1024, 4096, 16384], help="sequences that run")
    parser.add_argument("--waiting", type=int, default=1000, help="length of the queue of a full plan")
    parser.add_argument("--repeat", type=int, default=200, help="measurements of each kind")
    parser.add_argument("--clock", choices=_CLOCKS, default="wall", help="wall time, or this thread's CPU time")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    asked = parser.parse_args()
    _clock.set(_CLOCKS[asked.clock])
    figures = []
    for num_running in asked.running:
        figures += [what_if(num_running, asked.repeat), decide_one(num_running, asked.repeat)]
        for measure in (plan_queue, decide_queue):
            figures += [measure(num_running, asked.waiting, share, asked.repeat // 4 + 1) for share in _FITS]
    print(f"{'decision':<18}{'running':>9}{'waiting':>9}{'median ms':>12}{'p99 ms':>10}")
    for one in figures:
        print(f"{one.name:<18}{one.num_running:>9}{one.num_waiting:>9}{one.median_ms:>12.3f}{one.p99_ms:>10.3f}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in figures], indent=2))


if __name__ == "__main__":
    main()
