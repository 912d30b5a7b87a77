"""The prefill worker's core and its masters: aborts, tombstones, sessions, silence."""

import pytest

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    FailureCause,
    LiveAttempt,
    MasterRef,
    Placed,
    Prefilling,
    Queued,
    Reconcile,
    RefusalReason,
    Refused,
)
from services.common.messages import Peers as PeerList
from services.common.peer_messages import (
    Cancel,
    Granted,
)
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import AT_D0, AT_D1, D0, KEY, M0, output, submit
from tests.unit.protocol.handoff_bench import K2, PrefillBench


@pytest.mark.parametrize("reach", range(4))
def test_abort_in_each_state_gives_everything_back(reach: int) -> None:
    bench = PrefillBench()
    bench.master(submit())
    if reach >= 1:
        bench.event(ipc.Admitted(1, 0, 3))
    if reach >= 2:
        bench.peer(Granted(KEY, 0))
    if reach >= 3:
        bench.event(output(1, 0))
    bench.to_peer(D0)
    bench.master(Abort([KEY]))
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.to_peer(D0) == ([Cancel(KEY)] if reach else [])
    assert bench.is_empty


def test_aborted_attempt_cannot_start_late_until_its_tombstone_is_gone() -> None:
    bench = PrefillBench()
    bench.master(Abort([K2]))
    bench.master(submit())
    assert bench.to_master() == [Refused(KEY, RefusalReason.STALE)]
    bench.pass_time(16)
    assert bench.core.num_tombstones == 0
    bench.master(submit())
    assert bench.to_master() == [Queued(KEY)]


def test_lower_attempt_than_the_known_one_is_refused_and_a_higher_one_takes_its_place() -> None:
    bench = PrefillBench()
    bench.master(submit(K2))
    bench.to_master()
    bench.master(submit(KEY))
    assert bench.to_master() == [Refused(KEY, RefusalReason.STALE)]
    bench.master(submit(AttemptKey("r", 3)))
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.core.held(M0) == [AttemptKey("r", 3)]


def test_repeated_submit_has_no_effect() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.said.clear()
    bench.master(submit())
    assert bench.said == []


def test_attempt_that_is_not_named_twice_in_a_row_ends() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.master(Reconcile([]))
    bench.master(Reconcile([LiveAttempt(KEY, {0: 0})]))
    bench.master(Reconcile([]))
    assert not bench.is_empty
    bench.master(Reconcile([]))
    assert bench.is_empty


def test_hello_resumes_what_it_names_ends_the_rest_and_tells_what_is_unknown() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said.clear()
    unknown = AttemptKey("other", 1)
    bench.hello(LiveAttempt(KEY, {0: 0}), LiveAttempt(unknown, {0: 0}), session=2)
    events = bench.to_master()
    assert events[:3] == [Queued(KEY), Prefilling(KEY, 2), Placed(KEY, D0)]
    assert events[3].key == unknown
    assert events[3].cause is FailureCause.UNKNOWN_ATTEMPT
    assert [(one.key, one.next_index) for one in bench.take(fx.Follow)] == [(KEY, 0)]
    bench.hello(session=3)
    assert bench.is_empty


def test_master_that_is_silent_for_five_seconds_has_its_attempts_ended() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.said += bench.core.master_closed(M0, 1, 0.0)
    bench.pass_time(4)
    assert not bench.is_empty
    bench.pass_time(1)
    assert bench.is_empty


def test_restarted_master_owns_nothing_of_its_former_self() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.said += bench.core.master_closed(M0, 1, 0.0)
    bench.hello(session=2, master=MasterRef("m", "2"))
    assert bench.is_empty


def test_a_start_that_drains_beside_the_next_one_keeps_its_attempts_while_it_is_there_and_no_longer() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.hello(session=2, master=MasterRef("m", "2"))
    bench.master(submit(AttemptKey("later", 1)))
    assert bench.core.held(M0) == [KEY, AttemptKey("later", 1)]
    bench.said += bench.core.master_closed(M0, 1, 0.0)
    bench.pass_time(4)
    assert not bench.is_empty
    bench.pass_time(1)
    assert bench.is_empty


def test_a_start_that_drains_ends_nothing_of_the_next_one_when_both_come_back() -> None:
    bench = PrefillBench()
    after = MasterRef("m", "2")
    bench.hello(session=2, master=after)
    bench.said += bench.core.from_master(after, submit(), 0.0)
    for ref, session in ((M0, 1), (after, 2)):
        bench.said += bench.core.master_closed(ref, session, 0.0)
    bench.hello(session=3)
    assert bench.core.held(after) == [KEY]


def test_peers_are_those_of_the_masters_that_are_there() -> None:
    bench = PrefillBench()
    bench.master(PeerList([AT_D0]))
    other = MasterRef("n", "1")
    bench.hello(session=2, master=other)
    bench.said += bench.core.from_master(other, PeerList([AT_D1]), 0.0)
    assert bench.take(fx.WantPeers)[-1].peers == (AT_D0, AT_D1)
    bench.said += bench.core.master_closed(other, 2, 0.0)
    bench.pass_time(6)
    assert bench.take(fx.WantPeers) == [fx.WantPeers((AT_D0,))]


def test_end_of_an_old_session_does_not_make_its_master_silent() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.hello(LiveAttempt(KEY, {0: 0}), session=2)
    bench.said += bench.core.master_closed(M0, 1, 0.0)
    bench.pass_time(8)
    assert bench.core.held(M0) == [KEY]
