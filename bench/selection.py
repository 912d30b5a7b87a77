"""What choosing a pair costs a master, with as many prefill as decode workers, each proven for all of the others.

    python -m bench.selection [--workers 1 8 64] [--turns 300]

A request asks for a snapshot and then for a pair; one worker of each role differs from its last report, as after the
request before. Half of the prefill workers hold half of the prompt of 1024 tokens. CPU time, the fastest of ten rounds.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable

from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    Heartbeat,
    Limits,
    Load,
    MasterMessage,
    MasterRef,
    ProvenPair,
    Reconcile,
    Role,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.common.prefix_blocks import prompt_names
from services.common.request import Request, SamplingParams, StopParams
from services.pd_master.dispatcher import SnapshotChooser
from services.pd_master.pending_load import PendingLoad
from services.pd_master.roster import Roster
from services.pd_master.selector import USUAL, choose

_ROUNDS = 10
_LIMITS = Limits(100_000, 256, 100_000, 131_072, (0,), 2048)


class _Session:
    """Of a worker that spoke just now."""

    quiet_s = 0.0

    def __init__(self, address: str) -> None:
        self.address = address

    def say(self, message: MasterMessage) -> None:
        """Nobody reads."""


class _Nobody:
    """Takes the work of a roster that is only asked."""

    def reconcile(self, worker: WorkerRef) -> Reconcile:  # noqa: ARG002
        return Reconcile([])

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:
        """Nothing is under way."""

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        """Nothing is under way."""

    def worker_stalled(self, worker: WorkerRef) -> None:
        """Nothing is under way."""


class Fleet:
    """A roster of n prefill and n decode workers that have all reported."""

    def __init__(self, num_each: int) -> None:
        self.pending = PendingLoad()
        self.roster = Roster(MasterRef("m", "1"), self.pending, time.monotonic)
        self.roster.handler = _Nobody()
        self.prefill = [WorkerRef(f"p{number}", "1") for number in range(num_each)]
        self.decode = [WorkerRef(f"d{number}", "1") for number in range(num_each)]
        proven = [ProvenPair(worker, "cuda_ipc", 50.0) for worker in self.decode]
        for worker in self.prefill:
            self._come(worker, Role.PREFILL, proven)
        for worker in self.decode:
            self._come(worker, Role.DECODE, [])
        self._numbers = itertools.count()

    def _come(self, worker: WorkerRef, role: Role, proven: list[ProvenPair]) -> None:
        session = _Session(worker.worker_id)
        self.roster.up(session, WorkerHello(PROTOCOL, worker, role, "g", "m", session.address, _LIMITS))
        load = Load(predicted_wait_s=0.01, demand_ratio=0.5, tokens_per_s=40_000.0)
        self.roster.said(worker, Heartbeat(load, 0.0, ready=True, draining=False, proven=proven, held=[]))

    def dispatch(self) -> None:
        """Two workers get a request more than they had."""
        number = next(self._numbers)
        for workers in (self.prefill, self.decode):
            self.pending.sent(workers[number % len(workers)], AttemptKey(str(number), 0), 1)


def fastest_us(act: Callable[[], object], prepare: Callable[[], None], turns: int) -> float:
    """Of one call, `prepare` before each not counted."""
    rounds = []
    for _ in range(_ROUNDS):
        spent = 0.0
        for _ in range(turns):
            prepare()
            start = time.thread_time()
            act()
            spent += time.thread_time() - start
        rounds.append(spent / turns)
    return 1e6 * min(rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64], help="of each role")
    parser.add_argument("--turns", type=int, default=300, help="requests of a round")
    asked = parser.parse_args()
    sys.stdout.write(f"{'workers':>8}{'snapshot us':>14}{'choose us':>12}{'both, with prefixes us':>25}\n")
    prompt = list(range(1024))
    request = Request("r", "m", prompt, SamplingParams(), StopParams(300))
    for num_each in asked.workers:
        fleet = Fleet(num_each)
        roster = fleet.roster
        for worker in fleet.prefill[::2]:
            roster.prefixes.stored(worker, prompt_names(prompt[:512]))
        chooser, snapshot = SnapshotChooser(roster.snapshot, roster.prefixes, USUAL), roster.snapshot()
        nobody: frozenset[WorkerRef] = frozenset()
        spent = (
            fastest_us(roster.snapshot, fleet.dispatch, asked.turns),
            fastest_us(lambda: choose(request, nobody, snapshot), lambda: None, asked.turns),  # noqa: B023
            fastest_us(lambda: chooser.pair(request, nobody), fleet.dispatch, asked.turns),  # noqa: B023
        )
        sys.stdout.write(f"{f'{num_each} + {num_each}':>8}{spent[0]:>14.1f}{spent[1]:>12.1f}{spent[2]:>25.1f}\n")


if __name__ == "__main__":
    main()
