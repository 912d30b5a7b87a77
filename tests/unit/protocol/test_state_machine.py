"""The protocol (R1 to R20) under anything: the real cores of masters, prefill and decode workers over a network
that loses sessions with what is under way, repeats messages and delivers the streams in any order against each other;
processes that die and come back as other incarnations; engines that stand still, defer, revoke, preempt and lose
transfers; clients that go away.

What must hold, whatever happens (checked in `sim`):
- every client gets a prefix of the one right output, each token once, and text that fits it;
- every request ends, complete or with an error that says why;
- afterwards nothing is left: no job, reservation, attempt or tombstone on any worker, nothing in any master.
"""

import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from services.common.messages import Role
from tests.unit.protocol.sim.simulation import Simulation

PD = {"p0": Role.PREFILL, "d0": Role.DECODE}
LAYOUTS = {
    "1P1D": PD,
    "1P2D": PD | {"d1": Role.DECODE},
    "2P2D": PD | {"p1": Role.PREFILL, "d1": Role.DECODE},
    "2 mixed": {"x0": Role.MIXED, "x1": Role.MIXED},
    "all": PD | {"d1": Role.DECODE, "x0": Role.MIXED},
}
NUMBER = st.integers(0, 9_999)


class ProtocolMachine(RuleBasedStateMachine):
    """Faults are rules of their own; `flow` lets the system do its work in a random order between them."""

    sim: Simulation

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)), num_masters=st.integers(1, 2))
    def start(self, layout: str, num_masters: int) -> None:
        """Everybody knows everybody when it begins."""
        self.sim = Simulation(LAYOUTS[layout], num_masters)
        self.sim.settle()

    @rule(number=NUMBER, choices=st.integers(1, 3), limit=st.sampled_from([1, 2, 5, 20]), with_stop=st.booleans())
    def submit(self, number: int, choices: int, limit: int, with_stop: bool) -> None:
        self.sim.submit(number, choices, limit, with_stop=with_stop)

    @rule(seed=NUMBER, num_actions=st.integers(1, 60))
    def flow(self, seed: int, num_actions: int) -> None:
        self.sim.flow(random.Random(seed), num_actions)

    @rule(number=NUMBER, times=st.integers(1, 8))
    def deliver(self, number: int, times: int) -> None:
        for _ in range(times):
            self.sim.deliver(number)

    @rule(number=NUMBER)
    def deliver_and_repeat_late(self, number: int) -> None:
        self.sim.deliver(number, repeat=True)

    @rule(number=NUMBER)
    def break_session(self, number: int) -> None:
        self.sim.break_session(number)

    @rule(number=NUMBER)
    def notice_broken_session(self, number: int) -> None:
        self.sim.notice(number)

    @rule(number=NUMBER)
    def kill_worker(self, number: int) -> None:
        self.sim.kill_worker(number)

    @rule(worker=st.sampled_from(["p0", "p1", "d0", "d1", "x0", "x1"]))
    def start_worker(self, worker: str) -> None:
        if worker in self.sim.workers:
            self.sim.start_worker(worker)

    @rule()
    def restart_master(self) -> None:
        self.sim.start_master("m0")

    @rule(number=NUMBER)
    def drain_worker(self, number: int) -> None:
        self.sim.drain(number)

    @rule(number=NUMBER)
    def engine_stands_still(self, number: int) -> None:
        self.sim.stall(number)

    @rule(number=NUMBER)
    def engine_comes_to_itself(self, number: int) -> None:
        self.sim.wake(number)

    @rule(number=NUMBER)
    def client_goes(self, number: int) -> None:
        self.sim.abort(number)

    @rule(number=NUMBER)
    def engine_defers(self, number: int) -> None:
        self.sim.process(number, defer=True)

    @rule(number=NUMBER)
    def engine_preempts(self, number: int) -> None:
        self.sim.preempt(number)

    @rule(number=NUMBER)
    def engine_revokes(self, number: int) -> None:
        self.sim.revoke(number)

    @rule(number=NUMBER)
    def transfer_fails(self, number: int) -> None:
        self.sim.fail_transfer(number)

    @rule(number=NUMBER)
    def router_refuses(self, number: int) -> None:
        self.sim.refuse(number)

    @rule(number=NUMBER)
    def router_wants_a_grant_first(self, number: int) -> None:
        self.sim.reserve_first(number)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 8.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.sim.advance(seconds)

    def teardown(self) -> None:
        """The end of each run."""
        if hasattr(self, "sim"):
            self.sim.quiet()


ProtocolMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestProtocol = ProtocolMachine.TestCase

FAULTS = {
    "break_session": 7,
    "notice": 20,
    "kill_worker": 1.5,
    "drain": 0.2,
    "stall": 1,
    "wake": 4,
    "abort": 3,
    "preempt": 7,
    "revoke": 5,
    "fail_transfer": 4,
    "refuse": 0.5,
    "reserve_first": 10,
}


def run_at_random(seed: int, *, with_faults: bool) -> Simulation:
    """One long random schedule."""
    draw = random.Random(seed)
    sim = Simulation(LAYOUTS[draw.choice(sorted(LAYOUTS))], draw.choice([1, 1, 2]))
    sim.settle()
    for _ in range(40):
        sim.flow(draw, draw.randrange(60))
        if draw.random() < 0.4:
            limit = draw.choice([1, 2, 5, 20])
            sim.submit(draw.randrange(10**4), draw.choice([1, 1, 2, 3]), limit, with_stop=draw.random() < 0.4)
        if with_faults:
            _inject(sim, draw)
    sim.quiet()
    return sim


def _inject(sim: Simulation, draw: random.Random) -> None:
    for fault in draw.choices(list(FAULTS), list(FAULTS.values()), k=draw.choice([0, 0, 1, 1, 2])):
        getattr(sim, fault)(draw.randrange(10**6))
    if draw.random() < 0.3:
        sim.start_worker(draw.choice(sorted(sim.workers)))
    if draw.random() < 0.1:
        sim.deliver(draw.randrange(10**6), repeat=True)
    if draw.random() < 0.01:
        sim.start_master("m0")
    if draw.random() < 0.05:
        sim.advance(draw.choice([3.0, 8.0, 20.0]))


def outcomes(sim: Simulation) -> Counter[str]:
    """How its clients fared."""
    names = ["gone" if one.is_gone else type(one.error).__name__ if one.error else "complete" for one in sim.clients]
    return Counter(names)


@pytest.mark.parametrize("block", range(6))
def test_random_schedules_with_faults_leave_nothing_and_hang_nobody(block: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(50 * block, 50 * block + 50):
        total += outcomes(run_at_random(seed, with_faults=True))
    assert total["complete"] > 0.5 * total.total(), f"too few get through to show anything: {total}"


def test_random_schedules_without_faults_complete_every_request() -> None:
    total: Counter[str] = Counter()
    for seed in range(50):
        total += outcomes(run_at_random(seed, with_faults=False))
    assert set(total) == {"complete"}
