"""When a worker is given up, and when not yet."""

from services.common.messages import WorkerRef
from services.pd_master.liveness import Liveness, Lost

WORKERS = [WorkerRef(f"w{number}", "1") for number in range(4)]


def present(*workers: WorkerRef) -> Liveness:
    """All of them are up at time 0."""
    liveness = Liveness(worker_timeout_s=5.0)
    for worker in workers:
        liveness.up(worker)
    return liveness


def lost_by(liveness: Liveness, until: float, start: float = 0.0) -> list[Lost]:
    """Tick four times a second."""
    return [one for tick in range(int(start * 4), int(until * 4) + 1) for one in liveness.tick(tick / 4)]


def test_refused_worker_is_lost_at_once_and_counts_as_a_crash() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[0], 0.0)
    liveness.refused(WORKERS[0])
    assert lost_by(liveness, 1.0) == [Lost(WORKERS[0], crashed=True)]


def test_unreachable_worker_is_lost_after_half_the_timeout_and_is_no_crash() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[0], 0.0)
    assert lost_by(liveness, 2.25) == []
    assert lost_by(liveness, 3.0, 2.5) == [Lost(WORKERS[0], crashed=False)]


def test_silence_before_its_session_was_ended_counts_towards_the_timeout() -> None:
    liveness = present(*WORKERS)
    assert liveness.quiet_s < liveness.silence_s < 5.0
    liveness.down(WORKERS[0], 4.0, silent_s=liveness.silence_s)
    assert lost_by(liveness, 4.75, 4.0) == []
    assert lost_by(liveness, 5.0, 5.0) == [Lost(WORKERS[0], crashed=False)]


def test_a_session_that_broke_in_a_short_silence_has_no_longer_than_one_that_broke_in_none() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[0], 0.0, silent_s=1.0)
    assert lost_by(liveness, 2.25) == []
    assert lost_by(liveness, 2.5, 2.5) == [Lost(WORKERS[0], crashed=False)]


def test_worker_that_comes_back_in_time_is_kept() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[0], 0.0)
    assert lost_by(liveness, 2.0) == []
    liveness.up(WORKERS[0])
    assert lost_by(liveness, 20.0, 2.25) == []


def test_when_most_workers_fall_silent_at_once_none_is_given_up_before_they_gave_up_this_master() -> None:
    liveness = present(*WORKERS)
    for worker in WORKERS[:3]:
        liveness.down(worker, 0.0)
    assert lost_by(liveness, 7.75) == []
    assert {one.worker for one in lost_by(liveness, 8.0, 8.0)} == set(WORKERS[:3])


def test_quiet_workers_count_as_silent_while_their_sessions_last() -> None:
    first, second = WORKERS[:2]
    liveness = present(first, second)
    liveness.down(first, 4.0, silent_s=liveness.silence_s)
    assert liveness.tick(5.0, {second}) == []
    liveness.down(second, 5.0, silent_s=liveness.silence_s)
    assert lost_by(liveness, 11.75, 5.25) == []
    assert {one.worker for one in lost_by(liveness, 13.0, 12.0)} == {first, second}


def test_a_worker_that_was_quiet_and_speaks_again_delays_no_verdict() -> None:
    first, second = WORKERS[:2]
    liveness = present(first, second)
    liveness.down(first, 4.0, silent_s=liveness.silence_s)
    assert liveness.tick(5.0, {second}) == []
    assert [one.worker for one in liveness.tick(5.25)] == [first]


def test_nothing_moves_from_a_stalled_engine_to_quiet_workers() -> None:
    liveness = present(*WORKERS)
    liveness.tick(0.0, set(WORKERS[1:3]))
    assert not liveness.stalled(WORKERS[0], is_stalled=True)
    liveness.tick(0.25)
    assert liveness.stalled(WORKERS[0], is_stalled=True)


def test_half_of_the_workers_is_not_most() -> None:
    liveness = present(*WORKERS[:2])
    liveness.down(WORKERS[0], 0.0)
    assert [one.worker for one in lost_by(liveness, 3.0)] == [WORKERS[0]]


def test_refused_workers_do_not_count_as_silent() -> None:
    liveness = present(*WORKERS[:2])
    for worker in WORKERS[:2]:
        liveness.down(worker, 0.0)
        liveness.refused(worker)
    assert len(lost_by(liveness, 1.0)) == 2


def test_time_in_which_this_process_stood_still_is_not_held_against_workers() -> None:
    liveness = present(*WORKERS)
    liveness.tick(0.0)
    liveness.down(WORKERS[0], 0.0)
    assert liveness.tick(30.0) == []
    assert lost_by(liveness, 32.25, 30.25) == []
    assert [one.worker for one in lost_by(liveness, 33.0, 32.5)] == [WORKERS[0]]


def test_stalled_engine_is_a_reason_to_move_its_work_until_it_comes_to_itself() -> None:
    liveness = present(*WORKERS)
    assert liveness.stalled(WORKERS[0], is_stalled=True)
    assert liveness.stalled(WORKERS[1], is_stalled=True)
    assert not liveness.stalled(WORKERS[0], is_stalled=False)
    assert lost_by(liveness, 60.0) == []


def test_when_most_engines_stall_or_fall_silent_nothing_moves() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[2], 0.0)
    assert liveness.stalled(WORKERS[0], is_stalled=True)
    assert not liveness.stalled(WORKERS[1], is_stalled=True)
    assert not liveness.stalled(WORKERS[0], is_stalled=True)


def test_stalled_workers_are_heard_and_delay_no_verdict_over_silent_ones() -> None:
    liveness = present(*WORKERS)
    liveness.down(WORKERS[2], 0.0)
    liveness.stalled(WORKERS[0], is_stalled=True)
    liveness.stalled(WORKERS[1], is_stalled=True)
    assert lost_by(liveness, 2.25) == []
    assert [one.worker for one in lost_by(liveness, 3.0, 2.5)] == [WORKERS[2]]
