"""Which workers get new work, and what a start that is lost can still do."""

from dataclasses import dataclass, field

import pytest

from services.common.ipc import AttemptKey
from services.common.messages import (
    PROTOCOL,
    CacheChanges,
    Heartbeat,
    Limits,
    Load,
    MasterMessage,
    MasterRef,
    Reconcile,
    Role,
    WorkerHello,
    WorkerMessage,
    WorkerRef,
)
from services.pd_master.pending_load import PendingLoad
from services.pd_master.roster import Roster

BEAT = Heartbeat(Load(), 0.0, True, False, [], [], 0.0)


@dataclass
class Wire:
    """A session without a network."""

    address: str
    quiet_s: float = 0.0
    said: list[MasterMessage] = field(default_factory=list)

    def say(self, message: MasterMessage) -> None:
        self.said.append(message)


@dataclass
class Work:
    """Hears what the dispatcher would."""

    said: list[WorkerRef] = field(default_factory=list)
    lost: list[tuple[WorkerRef, bool]] = field(default_factory=list)

    def reconcile(self, worker: WorkerRef) -> Reconcile:  # noqa: ARG002
        return Reconcile([])

    def worker_said(self, worker: WorkerRef, message: WorkerMessage) -> None:  # noqa: ARG002
        self.said.append(worker)

    def worker_lost(self, worker: WorkerRef, *, crashed: bool) -> None:
        self.lost.append((worker, crashed))

    def worker_stalled(self, worker: WorkerRef) -> None:
        raise AssertionError(f"{worker} is not stalled")


@pytest.fixture
def roster() -> Roster:
    made = Roster(MasterRef("m", "1"), PendingLoad(), lambda: 0.0)
    made.handler = Work()
    return made


def come(roster: Roster, worker_id: str, role: Role, incarnation: str = "1") -> tuple[Wire, WorkerRef]:
    """A worker says hello and that it is well."""
    worker, wire = WorkerRef(worker_id, incarnation), Wire(f"{worker_id}:{incarnation}")
    roster.up(wire, WorkerHello(PROTOCOL, worker, role, "g", "m", wire.address, Limits(1, 1, 1, 1, (0,), 1)))
    roster.said(worker, BEAT)
    return wire, worker


def takers(roster: Roster) -> set[str]:
    """Who gets new work."""
    return {view.worker.worker_id for view in roster.snapshot().workers if view.takes_work}


def test_a_quiet_worker_is_passed_over_while_others_of_its_role_are_heard(roster: Roster) -> None:
    first, _ = come(roster, "d0", Role.DECODE)
    second, _ = come(roster, "d1", Role.DECODE)
    come(roster, "p0", Role.PREFILL)
    assert takers(roster) == {"d0", "d1", "p0"}
    first.quiet_s = roster.liveness.quiet_s
    assert takers(roster) == {"d1", "p0"}
    second.quiet_s = roster.liveness.quiet_s
    assert takers(roster) == {"d0", "d1", "p0"}  # a busy machine rather than nobody
    first.quiet_s = 0.0
    assert takers(roster) == {"d0", "p0"}


def test_what_a_start_that_is_lost_still_says_has_no_effect(roster: Roster) -> None:
    _, before = come(roster, "d0", Role.DECODE)
    _, after = come(roster, "d0", Role.DECODE, incarnation="2")
    work = roster.handler
    assert isinstance(work, Work)
    assert work.lost == [(before, True)]
    roster.said(before, BEAT)
    roster.said(before, CacheChanges(1, 0, [], []))
    assert work.said == [before, after]
    assert [view.worker for view in roster.snapshot().workers] == [after]


def test_at_an_outage_of_the_master_the_first_session_that_ends_is_not_lost_before_the_last_has_ended() -> None:
    now = [0.0]
    roster = Roster(MasterRef("m", "1"), PendingLoad(), lambda: now[0])
    roster.handler = work = Work()
    (first, one), (second, _) = come(roster, "p0", Role.PREFILL), come(roster, "d0", Role.DECODE)
    first.quiet_s = roster.liveness.silence_s
    second.quiet_s = roster.liveness.silence_s - 1.0
    roster.down(first, one)
    for tick in range(8):
        now[0] = tick / 4
        roster.sweep()
    assert work.lost == []
    second.quiet_s = 0.0
    roster.sweep()
    assert work.lost == [(one, False)]


def test_what_had_ended_on_a_lost_worker_is_forgotten_with_it() -> None:
    pending = PendingLoad()
    roster = Roster(MasterRef("m", "1"), pending, lambda: 0.0)
    roster.handler = Work()
    _, before = come(roster, "d0", Role.DECODE)
    pending.heartbeat(before)
    pending.ended(before, AttemptKey("r", 1), 100)
    (view,) = roster.snapshot().workers
    assert view.freed_tokens == 100
    come(roster, "d0", Role.DECODE, incarnation="2")
    assert pending.num_workers == 0
