"""From a Reserve to the first token, on the decode worker's core."""

from services.common import ipc
from services.common.messages import (
    Joined,
    MasterRef,
    RefusalReason,
)
from services.common.peer_messages import Denied, Granted, HandoverFailed, JoinConfirmed
from services.router.work import WorkKind
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import KEY, M0, P0, handover, reserve, token
from tests.unit.protocol.decode_bench import K2, DecodeBench


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
