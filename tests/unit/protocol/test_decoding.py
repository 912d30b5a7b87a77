"""Attempts that decode: preemption, choices, ends, masters that go."""

import math

import msgspec

from services.common import ipc
from services.common.ipc import AttemptKey
from services.common.messages import (
    Abort,
    Failed,
    FailureCause,
    LiveAttempt,
    Preempted,
    Reconcile,
    RefusalReason,
    Refused,
)
from services.common.peer_messages import Denied, Reserve
from services.common.request import FinishReason, Request, StopParams
from services.router.work import WorkKind
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import KEY, M0, P0, handover, output, request, reserve, submit, token
from tests.unit.protocol.decode_bench import DecodeBench
from tests.unit.protocol.sim.expected import open_log


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
    assert start.command.resumes == 1
    bench.event(output(start.command.job_id, 2))
    assert bench.take(fx.Grown)[-1].key == KEY


def test_preempted_sequence_waits_as_long_as_it_has_to() -> None:
    """A prediction of its wait, or the clock, would give it up as if its engine had crashed."""
    bench = DecodeBench()
    bench.joined()
    bench.take(fx.StartJob)
    bench.event(ipc.Preempted(1, 0))
    (start,) = bench.take(fx.StartJob)
    assert start.work.queue_deadline_s == math.inf


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


def test_stop_string_ends_the_sequence_in_the_engine_too() -> None:
    bench = DecodeBench()
    text = open_log(request(limit=30), 0, [])
    for position in range(30):
        text.take(output(0, position))
    word = text.since(0).text[3:6]  # type: ignore[union-attr]
    bench.peer(Reserve(KEY, M0, stopping(word), (0,), [], 0.0))
    bench.event(ipc.Reserved(1, 0, 3))
    bench.peer(handover())
    bench.event(ipc.Joined(1))
    for position in range(1, 30):
        bench.event(output(1, position))
    (finish,) = bench.take(fx.FinishSequence)
    assert (finish.job_id, finish.choice) == (1, 0)
    assert 1 < finish.num_output_tokens < 30
    bench.event(ipc.Ended(1))
    assert not any(isinstance(one, Failed) for one in bench.to_master())


def stopping(word: str) -> Request:
    """The usual request, which a word ends."""
    return msgspec.structs.replace(request(limit=30), stop=StopParams(30, stop_strings=(word,)))
