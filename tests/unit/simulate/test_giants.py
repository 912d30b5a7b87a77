"""Giants among small ones: what they hold and whom they keep waiting, and backfilling."""

from dataclasses import replace

import numpy as np
import pytest

from bench.simulate.backfill import Backfill
from bench.simulate.cost import Costs
from bench.simulate.fleet import Setup
from bench.simulate.giants import Served, filled_share, grant_waits_s, line, mixed, stays_s, with_giants
from bench.simulate.measure import simulate
from bench.simulate.story import Story
from bench.simulate.trace import Arrival
from services.router.peak_memory import Joiners, PeakCurve
from services.router.scheduler import Plan, PoolView
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig, WorkKind

COSTS = Costs("by hand", 0.01, 0.0, 0.0, 1e-6, 0.0, 1000, 1000.0, 0.0, 100_000)
CONFIG = RouterConfig(10_000, max_running=1000, extent_slots=1, max_bypasses=0)


def small_ones(count: int, per_s: float) -> list[Arrival]:
    return [Arrival(number / per_s, 400, 100) for number in range(count)]


@pytest.mark.parametrize("backfills", [False, True])
def test_giants_that_leave_room_for_the_rest_make_nobody_wait(backfills: bool) -> None:
    setup = Setup(COSTS, rule="oracle", sheds=False, backfills=backfills, decode=CONFIG, prefill=RouterConfig(100_000))
    both = mixed(setup, small_ones(200, 5.0), 20, every_s=10.0, phases=1)
    assert (len(both.small), len(both.giants)) == (180, 4), "all but the first tenth"
    assert both.wait_s == 0.0
    assert all(stay_s == pytest.approx(199 * 0.01, abs=0.05) for stay_s in stays_s(both.giants))


def test_small_ones_wait_for_a_giant_that_leaves_too_little() -> None:
    setup = Setup(COSTS, rule="oracle", sheds=False, decode=CONFIG, prefill=RouterConfig(100_000))
    small = small_ones(400, 18.0)  # which fill four fifths
    assert max(grant_waits_s(simulate(setup, small).stories)) == 0.0
    assert mixed(setup, small, 60, every_s=10.0, phases=2).wait_s > 0.3


def test_each_phase_brings_giants_at_other_times_and_none_is_left_out() -> None:
    small = small_ones(100, 5.0)
    times = [
        [one.at_s for one in with_giants(small, 6000, 4.0, phase) if one.prompt_tokens == 6000]
        for phase in (0.25, 0.75)
    ]
    assert times == [[1.0, 5.0, 9.0, 13.0, 17.0], [3.0, 7.0, 11.0, 15.0, 19.0]]


def test_small_ones_that_end_before_a_giant_would_come_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"--every: the small ones come for 0.8 s"):
        with_giants(small_ones(5, 5.0), 6000, 15.0)


def story(prompt_tokens: int, granted_s: float, finished_s: float | None) -> Story:
    one = Story(0, Arrival(0.0, prompt_tokens, 10), 100)
    one.reserved_s, one.granted_s, one.finished_s = 0.0, granted_s, finished_s
    return one


def test_giants_that_did_not_finish_count_neither_for_stays_nor_for_the_even_load() -> None:
    small = [story(100, 1.0, 3.0)] * 6
    both = Served(small, [story(600, 2.0, 4.0), story(600, 5.0, None)])
    assert stays_s(both.giants) == [2.0]
    assert both.as_small(10.0) == pytest.approx(20.0)
    assert Served(small, [story(600, 5.0, None)]).as_small(10.0) == 10.0
    nobody = Served(small, [])
    assert line(60.0, nobody, nobody, nobody, bypass_s=5.0).split()[-4:] == ["0.00", "0.00", "7.00", "0"]


def test_filled_share_is_rate_times_room_times_stay() -> None:
    setup = Setup(COSTS, rule="oracle", sheds=False, decode=CONFIG, prefill=RouterConfig(100_000))
    stories = simulate(setup, small_ones(400, 10.0)).stories
    assert filled_share(stories, 10_000) == pytest.approx(10.0 * 450 * 1.0 / 10_000, rel=0.05)


def test_room_asked_for_late_is_held_for_less_time() -> None:
    slow = replace(COSTS, prefill_token_s=1e-3)
    stays = {}
    for ahead_s in (10.0, 0.5):
        setup = Setup(slow, rule="oracle", sheds=False, reserve_ahead_s=ahead_s, decode=CONFIG)
        (stays[ahead_s],) = stays_s(simulate(setup, [Arrival(0.0, 3000, 100), Arrival(1.0, 10, 1)]).stories[:1])
    assert stays[10.0] - stays[0.5] == pytest.approx(3.0 - 0.5, abs=0.05)


def planned(*waiting: tuple[int, int]) -> Plan:
    """Of a giant of 9000 and these (slots, steps), in a pool of which 5000 are held for 100 steps more."""
    queue = WaitingQueue(CONFIG)
    for number, (slots, _) in enumerate([(9000, 0), *waiting]):
        queue.push(QueuedWork(number, WorkKind.RESERVATION, number, slots, 1000), unit=0.5, group=0)
    left = [10, *(steps for _, steps in waiting)]
    curve = PeakCurve.of(Joiners.of([5000], [100], [0]), now=0)
    arrays = queue.arrays()
    view = PoolView(curve, CONFIG.capacity_slots, num_running=1, step_tokens_left=1000)
    return Backfill()(queue, Joiners(arrays.held, np.array(left), arrays.growth), view, CONFIG, 0.0)


def test_only_what_ends_before_the_giant_starts_passes_it() -> None:
    assert planned((100, 100), (100, 101), (100, 5)).admit == [1, 3]


def test_what_passes_a_giant_fits_beside_what_runs() -> None:
    assert planned((3000, 50), (3000, 50), (1000, 50)).admit == [1]
