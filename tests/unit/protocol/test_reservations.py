"""The decode worker's core, rule by rule."""

import pytest

from services.common import ipc
from services.common.errors import ContextLengthError, OverloadedError
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    Joined,
    LiveAttempt,
    MasterRef,
    Preempted,
    Reconcile,
    RefusalReason,
    Refused,
    WorkerRef,
)
from services.common.peer_messages import Cancel, Denied, Granted, HandoverFailed, Held, JoinConfirmed, Revoked
from services.common.request import FinishReason
from services.decode.reservations import DecodeReservations
from services.router.work import WorkKind
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import KEY, M0, P0, Bench, handover, output, request, reserve, submit, token

K2 = AttemptKey("r", 2)


class DecodeBench(Bench):
    """With a session from p0."""

    def __init__(self, *, with_master: bool = True) -> None:
        super().__init__(DecodeReservations, with_master=with_master)
        self.said += self.core.peer_hello(P0, 1, 0.0)

    def peer(self, message: object, worker: WorkerRef = P0) -> None:
        """A prefill worker says something."""
        self.said += self.core.from_peer(worker, message, self.now)

    def reserved(self, num_choices: int = 1) -> None:
        """Slots are promised, as job 1."""
        self.peer(reserve(num_choices=num_choices))
        self.event(ipc.Reserved(1, 1, 3))

    def joined(self, num_choices: int = 1) -> None:
        """It decodes."""
        self.reserved(num_choices)
        self.peer(handover(num_choices=num_choices))
        self.event(ipc.Joined(1))


def test_reservation_is_granted_with_the_prefix_that_is_here() -> None:
    bench = DecodeBench()
    bench.peer(reserve())
    (start,) = bench.take(fx.StartJob)
    assert (start.work.kind, ipc.unpack_ids(start.command.token_ids)) == (WorkKind.RESERVATION, [50, 1, 2])  # type: ignore[union-attr]
    assert bench.to_peer(P0) == []
    bench.event(ipc.Reserved(1, 1, 3))
    assert bench.to_peer(P0) == [Granted(KEY, 1)]


def test_repeated_reserve_gets_the_same_answer_and_no_second_job() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.take(fx.StartJob)
    bench.to_peer(P0)
    bench.peer(reserve())
    assert bench.to_peer(P0) == [Granted(KEY, 1)]
    assert bench.take(fx.StartJob) == []


def test_reservation_for_a_master_without_a_session_is_denied() -> None:
    bench = DecodeBench(with_master=False)
    bench.peer(reserve())
    assert bench.to_peer(P0) == [Denied(KEY, RefusalReason.NO_MASTER)]
    bench.hello()
    bench.peer(reserve(K2, MasterRef("m", "another start")))
    assert bench.to_peer(P0) == [Denied(K2, RefusalReason.NO_MASTER)]


def test_denial_is_definite() -> None:
    bench = DecodeBench(with_master=False)
    bench.peer(reserve())
    bench.hello()
    bench.to_peer(P0)
    bench.peer(reserve())
    assert bench.to_peer(P0) == [Denied(KEY, RefusalReason.STALE)]


@pytest.mark.parametrize("message", ["cancel", "abort"])
def test_reserve_after_its_cancel_or_abort_is_denied_for_one_lease(message: str) -> None:
    bench = DecodeBench()
    if message == "cancel":
        bench.peer(Cancel(KEY))
    else:
        bench.master(Abort([KEY]))
    bench.peer(reserve())
    assert bench.to_peer(P0) == [Denied(KEY, RefusalReason.STALE)]
    bench.pass_time(16)
    bench.peer(reserve())
    assert len(bench.take(fx.StartJob)) == 1


def test_lower_attempt_than_the_known_one_is_denied() -> None:
    bench = DecodeBench()
    bench.peer(reserve(K2))
    bench.peer(reserve(KEY))
    assert bench.to_peer(P0) == [Denied(KEY, RefusalReason.STALE)]
    assert bench.core.held(M0) == [K2]


def test_higher_attempt_takes_the_place_of_the_known_one() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(reserve(K2))
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.core.held(M0) == [K2]


def test_join_hands_over_what_came_and_repeats_token_0() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(handover())
    (command,) = bench.take(fx.EngineCommand)
    assert isinstance(command.command, ipc.Join)
    assert command.command.first_tokens == {0: token(0)}
    bench.to_peer(P0)
    bench.event(ipc.Joined(1))
    assert bench.to_peer(P0) == [JoinConfirmed(KEY)]
    assert bench.to_master() == [Joined(KEY, (0,), 2)]
    (follow,) = bench.take(fx.Follow)
    delta = follow.log.since(0)
    assert delta is not None
    assert (delta.first_index, delta.token_ids) == (0, [token(0)])


def test_other_number_of_tokens_than_reserved_never_decodes() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.to_peer(P0)
    bench.peer(handover(num_tokens=4))
    (failed,) = bench.to_peer(P0)
    assert failed.reason is RefusalReason.MISMATCH
    assert bench.is_empty


def test_repeated_handover_is_answered_again() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.said.clear()
    bench.peer(handover())
    assert bench.to_peer(P0) == [JoinConfirmed(KEY)]
    assert bench.take(fx.EngineCommand) == []


def test_handover_of_what_is_not_reserved_fails() -> None:
    bench = DecodeBench()
    bench.peer(handover())
    assert isinstance(bench.to_peer(P0)[0], HandoverFailed)


def test_cancel_gives_a_reservation_back_but_leaves_a_joined_attempt() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(Cancel(KEY))
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.is_empty
    joined = DecodeBench()
    joined.joined()
    joined.to_peer(P0)
    joined.peer(Cancel(KEY))
    assert joined.to_peer(P0) == [JoinConfirmed(KEY)]
    assert joined.core.num_jobs == 1


def test_expired_lease_returns_its_slots() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.pass_time(9)
    assert not bench.is_empty
    bench.to_peer(P0)
    bench.pass_time(1)
    assert isinstance(bench.to_peer(P0, but=Held)[0], HandoverFailed)
    assert bench.take(fx.EndJob) == [fx.EndJob(1)]
    assert bench.is_empty


def test_named_reservation_lives_as_long_as_it_is_named() -> None:
    bench = DecodeBench()
    bench.reserved()
    for _ in range(30):
        bench.peer(Held([KEY]))
        bench.pass_time(1)
    assert bench.core.num_jobs == 1


def test_reservation_left_out_twice_in_a_row_is_given_back() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.peer(Held([]))
    bench.peer(Held([KEY]))
    bench.peer(Held([]))
    assert not bench.is_empty
    bench.peer(Held([]))
    assert bench.is_empty


def test_restarted_prefill_worker_holds_nothing_of_its_former_self() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.said += bench.core.peer_hello(WorkerRef("p0", "2"), 2, 0.0)
    assert bench.is_empty


def test_joined_attempt_outlives_its_prefill_worker() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.said += bench.core.peer_hello(WorkerRef("p0", "2"), 2, 0.0)
    bench.pass_time(20)
    assert bench.core.num_jobs == 1


def test_revoked_reservation_is_said_and_gone() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.to_peer(P0)
    bench.event(ipc.Revoked(1))
    assert bench.to_peer(P0) == [Revoked(KEY)]
    assert bench.is_empty


def test_failed_transfer_is_said_and_gone() -> None:
    bench = DecodeBench()
    bench.reserved()
    bench.to_peer(P0)
    bench.event(ipc.TransferFailed(1, "verification", "checksum"))
    (failed,) = bench.to_peer(P0)
    assert failed.reason is RefusalReason.TRANSFER
    assert bench.is_empty


def test_router_that_refuses_is_a_denial_with_its_reason() -> None:
    for error, reason in (
        (OverloadedError("full", retry_after_s=3.0), RefusalReason.QUEUE_FULL),
        (ContextLengthError("large"), RefusalReason.TOO_LARGE),
    ):
        bench = DecodeBench()
        bench.peer(reserve())
        bench.said += bench.core.job_refused(1, error, 0.0)
        assert bench.to_peer(P0) == [Denied(KEY, reason, error.retry_after_s, error.message)]
        assert bench.is_empty


def test_abort_in_each_state_gives_everything_back() -> None:
    for reach in ("asked", "reserved", "joining", "joined"):
        bench = DecodeBench()
        bench.peer(reserve())
        if reach != "asked":
            bench.event(ipc.Reserved(1, 0, 3))
        if reach in {"joining", "joined"}:
            bench.peer(handover())
        if reach == "joined":
            bench.event(ipc.Joined(1))
        bench.master(Abort([KEY]))
        assert bench.take(fx.EndJob) == [fx.EndJob(1)], reach
        assert bench.is_empty, reach


def test_preempted_sequence_is_computed_again_here_with_its_output() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.event(output(1, 1))
    bench.take(fx.StartJob)
    bench.to_master()
    bench.event(ipc.Preempted(1, 0))
    bench.event(ipc.Ended(1))
    assert bench.to_master() == [Preempted(KEY, 0)]
    (start,) = bench.take(fx.StartJob)
    assert isinstance(start.command, ipc.Admit)
    assert ipc.unpack_ids(start.command.output_ids) == [token(0), token(1)]
    assert (start.work.kind, start.work.produced_tokens) == (WorkKind.RESUMED, 2)
    bench.event(output(start.command.job_id, 2))
    assert bench.take(fx.Grown)[-1].key == KEY


def test_abort_while_preempted_leaves_the_queue() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.event(ipc.Preempted(1, 0))
    bench.event(ipc.Ended(1))
    bench.take(fx.StartJob)
    bench.master(Abort([KEY]))
    assert bench.take(fx.EndJob) == [fx.EndJob(2)]
    assert bench.is_empty


def test_choices_finish_and_are_preempted_each_by_itself() -> None:
    bench = DecodeBench()
    bench.joined(num_choices=2)
    bench.event(output(1, 1, choice=0, finish=FinishReason.LENGTH))
    bench.event(ipc.Preempted(1, 1))
    bench.event(ipc.Ended(1))
    assert not any(isinstance(one, Failed) for one in bench.to_master())
    (start,) = bench.take(fx.StartJob)[1:]
    assert isinstance(start.command, ipc.Admit)
    assert start.command.choices == (1,)


def test_finished_output_is_kept_until_the_master_has_it() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.event(output(1, 1, finish=FinishReason.LENGTH))
    bench.event(ipc.Ended(1))
    assert (bench.core.num_jobs, bench.core.held(M0)) == (0, [KEY])
    bench.take(fx.Follow)
    bench.hello(LiveAttempt(KEY, {0: 1}), session=2)
    (follow,) = bench.take(fx.Follow)
    delta = follow.log.since(follow.next_index)
    assert delta is not None
    assert (delta.token_ids, delta.finish is not None) == ([token(1)], True)
    bench.master(Abort([KEY]))
    assert bench.is_empty


def test_sequence_the_engine_dropped_without_a_word_is_a_failure() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.event(ipc.Ended(1))
    failed = bench.to_master()[-1]
    assert isinstance(failed, Failed)
    assert failed.cause is FailureCause.ENGINE


def test_silent_master_loses_reserved_and_joined_attempts() -> None:
    for is_joined in (False, True):
        bench = DecodeBench()
        bench.joined() if is_joined else bench.reserved()
        bench.said += bench.core.master_closed(M0, 1, 0.0)
        bench.pass_time(6)
        assert bench.is_empty


def test_attempt_its_master_does_not_name_twice_ends() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.master(Reconcile([]))
    assert not bench.is_empty
    bench.master(Reconcile([]))
    assert bench.is_empty


def test_drain_denies_what_waits_and_goes_on_with_what_is_in() -> None:
    bench = DecodeBench()
    bench.joined()
    bench.peer(reserve(AttemptKey("s", 1)))
    bench.to_peer(P0)
    bench.said += bench.core.drain(0.0)
    assert bench.to_peer(P0) == [Denied(AttemptKey("s", 1), RefusalReason.DRAINING)]
    assert bench.core.num_jobs == 1
    bench.peer(reserve(AttemptKey("t", 1)))
    assert bench.to_peer(P0) == [Denied(AttemptKey("t", 1), RefusalReason.DRAINING)]


def test_prompt_sent_to_a_decode_worker_is_refused() -> None:
    bench = DecodeBench()
    bench.master(submit())
    assert isinstance(bench.to_master()[0], Refused)
    assert request().num_choices == 1
