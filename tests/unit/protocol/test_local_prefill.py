"""A decode worker that computes a prompt itself: its master's from the start, nobody else's."""

from typing import Any

import pytest

from services.common import ipc
from services.common.errors import OverloadedError
from services.common.ipc import AttemptKey
from services.common.messages import Abort, Failed, Prefilling, Queued, RefusalReason, Refused
from services.decode.reservations import DecodeReservations
from services.router.work import WorkKind
from services.worker.jobs import GivenUp, JobEvent
from services.worker.protocol import effects as fx
from tests.unit.protocol.cores import AT_D0, KEY, Bench, output, submit


@pytest.fixture
def bench() -> Bench:
    """A decode worker with its master."""
    return Bench(DecodeReservations)


def queued(bench: Bench) -> int:
    """Submit a prompt to be computed here; its job."""
    bench.master(submit(decode=None))
    (start,) = bench.take(fx.StartJob)
    assert start.work.kind is WorkKind.LOCAL
    assert bench.to_master() == [Queued(KEY)]
    return start.command.job_id


def test_it_is_computed_and_decoded_here_and_its_master_hears_no_placement(bench: Bench) -> None:
    job = queued(bench)
    bench.event(ipc.Admitted(job, 2, 3))
    assert bench.to_master() == [Prefilling(KEY, 2)]
    bench.event(output(job, 0))
    assert [one.choice for one in bench.take(fx.Grown)] == [0]
    bench.master(Abort([KEY]))
    assert bench.take(fx.EndJob) == [fx.EndJob(job)]
    bench.event(ipc.Ended(job))
    assert bench.is_empty


def test_while_it_waits_an_abort_takes_it_out_and_a_drain_gives_it_back(bench: Bench) -> None:
    job = queued(bench)
    bench.master(Abort([KEY]))
    assert bench.take(fx.EndJob) == [fx.EndJob(job)]
    assert bench.is_empty

    other = Bench(DecodeReservations)
    job = queued(other)
    other.said += other.core.drain(other.now)
    assert other.take(fx.EndJob) == [fx.EndJob(job)]
    assert other.to_master() == [Refused(KEY, RefusalReason.DRAINING)]


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (GivenUp(1, OverloadedError("full", retry_after_s=2.0)), Refused),
        (ipc.Ended(1), Failed),
    ],
)
def test_what_the_router_or_the_engine_does_not_take_is_told(
    bench: Bench, event: JobEvent, answer: type[object]
) -> None:
    assert queued(bench) == 1
    bench.event(event)
    (told,) = bench.to_master()
    assert isinstance(told, answer)
    assert bench.core.num_jobs == 0


def test_a_decode_worker_hands_nothing_over(bench: Bench) -> None:
    bench.master(submit(decode=AT_D0))
    (told,) = bench.to_master()
    assert (told.reason, bench.is_empty) == (RefusalReason.NOT_READY, True)


def test_the_same_submit_again_starts_nothing(bench: Bench) -> None:
    queued(bench)
    bench.master(submit(decode=None))
    assert bench.take(fx.StartJob) == []


class Unwalked(dict[int, Any]):
    """A long queue that nobody may look through."""

    def __iter__(self) -> Any:  # noqa: ANN401
        raise AssertionError("the whole queue was looked through")

    items = values = keys = __iter__


def test_an_attempt_leaves_the_queue_without_a_look_at_the_others(bench: Bench) -> None:
    keys = [AttemptKey(f"r{number}", 1) for number in range(3)]
    for key in keys:
        bench.master(submit(key, decode=None))
    bench.core._computing._by_job = Unwalked(bench.core._computing._by_job)
    bench.master(Abort([keys[1]]))
    assert bench.take(fx.EndJob) == [fx.EndJob(2)]
    bench.event(ipc.Admitted(1, 0, 3))
    bench.master(Abort(keys))
    assert bench.take(fx.EndJob) == [fx.EndJob(1), fx.EndJob(3)]
