"""The prefill worker's core, rule by rule."""

import pytest

from services.common import ipc
from services.common.errors import OverloadedError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    LiveAttempt,
    MasterRef,
    Placed,
    PlacementRefused,
    Prefilling,
    Queued,
    Reconcile,
    Redirect,
    RefusalReason,
    Refused,
    WorkerRef,
)
from services.common.messages import Peers as PeerList
from services.common.peer_messages import (
    Cancel,
    Denied,
    Granted,
    HandoverFailed,
    Held,
    JoinConfirmed,
    Reserve,
    Revoked,
)
from services.common.request import FinishReason
from services.prefill.handoff import PrefillHandoff
from services.worker.jobs import ReserveFirst
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import AT_D0, AT_D1, D0, D1, KEY, M0, Bench, handover, output, submit

K2 = AttemptKey("r", 2)


class PrefillBench(Bench):
    """With a session to d0."""

    def __init__(self) -> None:
        super().__init__(PrefillHandoff)
        self.said += self.core.peer_hello(D0, 1, 0.0)

    def peer(self, message: object, worker: WorkerRef = D0) -> None:
        """A decode worker says something."""
        self.said += self.core.from_peer(worker, message)

    def computing(self, num_choices: int = 1) -> None:
        """The prompt is in the engine, as job 1."""
        self.master(submit(num_choices=num_choices))
        self.event(ipc.Admitted(1, 2, 3))

    def computed(self) -> None:
        """Token 0 is there, room on d0 as well."""
        self.computing()
        self.peer(Granted(KEY, 1))
        self.event(output(1, 0))


def test_reserve_goes_out_when_compute_starts_and_only_once() -> None:
    bench = PrefillBench()
    bench.master(submit())
    assert bench.to_master() == [Queued(KEY)]
    assert bench.to_peer(D0) == []
    bench.event(ipc.Admitted(1, 2, 3))
    assert bench.to_master() == [Prefilling(KEY, 2)]
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.event(ReserveFirst(1))
    assert bench.to_peer(D0) == []


def test_reserve_goes_out_before_compute_when_the_router_says_so() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.event(ReserveFirst(1))
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.peer(Granted(KEY, 1))
    assert bench.take(fx.JobGranted) == [fx.JobGranted(1)]
    assert bench.take(fx.EngineCommand) == []
    bench.event(ipc.Admitted(1, 0, 3))
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Place(1, "d0", KEY, 1))]


def test_placed_is_said_before_the_first_push() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.said.clear()
    bench.peer(Granted(KEY, 1))
    kinds = [type(one) for one in bench.said]
    assert kinds.index(fx.SendToMaster) < kinds.index(fx.EngineCommand)
    assert bench.to_master() == [Placed(KEY, D0)]


def test_first_token_is_shown_from_the_grant_on() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.event(output(1, 0))
    assert bench.take(fx.Follow) == []
    bench.peer(Granted(KEY, 0))
    assert [one.choice for one in bench.take(fx.Follow)] == [0]
    assert handover() in bench.to_peer(D0)


def test_kv_is_released_only_when_the_other_side_has_joined() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.take(fx.EngineCommand)
    assert bench.core.num_jobs == 1
    bench.peer(JoinConfirmed(KEY))
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Release(1))]
    assert bench.core.held(M0) == [KEY]
    bench.master(Abort([KEY]))
    assert bench.is_empty


def test_prompt_whose_only_token_ends_it_needs_no_decode_worker() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.to_peer(D0)
    bench.event(output(1, 0, finish=FinishReason.LENGTH))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert len(bench.take(fx.Follow)) == 1
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Release(1))]
    assert bench.core.num_jobs == 0


def test_only_choices_that_go_on_are_handed_over() -> None:
    bench = PrefillBench()
    bench.computing(num_choices=2)
    bench.peer(Granted(KEY, 0))
    bench.to_peer(D0)
    bench.event(output(1, 0, choice=0, finish=FinishReason.STOP))
    assert bench.to_peer(D0) == []
    bench.event(output(1, 0, choice=1))
    (handed,) = bench.to_peer(D0)
    assert [one.choice for one in handed.first] == [1]


def test_refused_placement_keeps_the_kv_and_goes_on_under_the_new_number() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.event(output(1, 0))
    bench.peer(Denied(KEY, RefusalReason.QUEUE_FULL, 2.0, "full"))
    assert bench.to_master()[-1] == PlacementRefused(KEY, RefusalReason.QUEUE_FULL, 2.0, "full")
    assert bench.take(fx.EndJob) == []
    bench.said += bench.core.peer_hello(D1, 2, 0.0)
    bench.to_peer(D1)
    bench.master(Redirect(KEY, 2, AT_D1))
    assert [one.key for one in bench.to_peer(D1)] == [K2]
    bench.peer(Granted(K2, 0), D1)
    assert bench.take(fx.EngineCommand) == [fx.EngineCommand(ipc.Place(1, "d1", K2, 0))]
    assert bench.core.held(M0) == [K2]


def test_answers_to_an_old_number_are_ignored_and_a_late_grant_is_given_back() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.peer(Revoked(KEY))
    bench.master(Redirect(KEY, 2, AT_D0))
    bench.to_peer(D0)
    bench.to_master()
    bench.peer(HandoverFailed(KEY, RefusalReason.TRANSFER))
    assert bench.to_master() == []
    bench.peer(Granted(KEY, 0))
    assert bench.to_peer(D0) == [Cancel(KEY)]


def test_failed_transfer_cancels_and_asks_for_another_place() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.event(ipc.TransferFailed(1, "deadline", "slow"))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert isinstance(bench.to_master()[-1], PlacementRefused)
    assert bench.core.num_jobs == 1


def test_what_was_not_answered_is_said_again_on_the_next_session() -> None:
    bench = PrefillBench()
    bench.computing()
    bench.to_peer(D0)
    bench.said += bench.core.peer_closed(D0, 1)
    bench.said += bench.core.peer_hello(D0, 2, 0.0)
    assert [type(one) for one in bench.to_peer(D0)] == [Reserve]
    bench.peer(Granted(KEY, 0))
    bench.event(output(1, 0))
    bench.to_peer(D0)
    bench.said += bench.core.peer_hello(D0, 3, 0.0)
    assert bench.to_peer(D0) == [handover()]


def test_restarted_decode_worker_loses_its_placements_at_once() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_hello(WorkerRef("d0", "2"), 2, 0.0)
    assert bench.to_master()[-1].reason is RefusalReason.NO_PEER


def test_decode_worker_without_a_session_loses_its_placements_after_a_grace() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_closed(D0, 1)
    bench.to_master()
    bench.pass_time(2)
    assert bench.to_master() == []
    bench.pass_time(1)
    assert bench.to_master()[-1].reason is RefusalReason.NO_PEER


def test_end_of_an_old_session_does_not_touch_the_new_one() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.said += bench.core.peer_hello(D0, 2, 0.0)
    bench.said += bench.core.peer_closed(D0, 1)
    bench.pass_time(5)
    assert not any(isinstance(one, PlacementRefused) for one in bench.to_master())


def test_placement_that_the_decode_worker_leaves_out_twice_is_lost_and_cancelled() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.peer(Held([]))
    bench.peer(Held([KEY]))
    bench.peer(Held([]))
    assert bench.to_peer(D0) == []
    bench.peer(Held([]))
    assert bench.to_peer(D0) == [Cancel(KEY)]


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
    bench.hello(session=2, master=MasterRef("m", "2"))
    assert bench.is_empty


def test_prompt_that_the_router_gives_up_is_refused_with_its_retry_after() -> None:
    bench = PrefillBench()
    bench.master(submit())
    bench.said += bench.core.job_refused(1, OverloadedError("full", retry_after_s=7.0), 0.0)
    assert bench.to_master()[-1] == Refused(KEY, RefusalReason.QUEUE_FULL, 7.0, "full")
    assert bench.core.num_jobs == 0


def test_drain_gives_back_what_is_not_granted_and_finishes_what_is() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.master(submit(AttemptKey("s", 1)))
    bench.said += bench.core.drain(0.0)
    assert bench.to_master()[-1] == Refused(AttemptKey("s", 1), RefusalReason.DRAINING)
    assert bench.core.num_jobs == 1
    bench.master(submit(AttemptKey("t", 1)))
    assert bench.to_master() == [Refused(AttemptKey("t", 1), RefusalReason.DRAINING)]


def test_prompt_the_engine_ended_by_itself_is_a_failure_and_a_cancel() -> None:
    bench = PrefillBench()
    bench.computed()
    bench.to_peer(D0)
    bench.event(ipc.Ended(1))
    assert bench.to_peer(D0) == [Cancel(KEY)]
    assert isinstance(bench.to_master()[-1], Failed)


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
