"""Giants among small ones: what they hold, what no order can spare the small ones, and backfilling."""

from dataclasses import replace

import numpy as np
import pytest

from bench.simulate.backfill import Backfill
from bench.simulate.cost import Costs
from bench.simulate.fleet import Setup
from bench.simulate.giants import filled_share, fluid_floor_s, grant_waits_s, mixes, stays_s
from bench.simulate.measure import simulate
from bench.simulate.trace import Arrival
from services.router.peak_memory import Joiners, PeakCurve
from services.router.scheduler import Plan, PoolView
from services.router.waiting import WaitingQueue
from services.router.work import QueuedWork, RouterConfig, WorkKind

COSTS = Costs("by hand", 0.01, 0.0, 0.0, 1e-6, 0.0, 1000, 1000.0, 0.0, 100_000)
CONFIG = RouterConfig(10_000, max_running=1000, extent_slots=1, max_bypasses=0)


def small_ones(count: int, per_s: float) -> list[Arrival]:
    return [Arrival(number / per_s, 400, 100) for number in range(count)]


def fluid_wait_s(small: float, giant: float, stay_s: float, every_s: float) -> float:
    """The 99th percentile of a fluid that is followed step by step."""
    step_s, waits, turn = 1e-3, [], 0.0
    for number in range(int(every_s / step_s)):
        arrives = number * step_s
        turn = max(turn, arrives)
        turn += small * step_s / (1 - giant if turn < stay_s else 1)
        waits.append(turn - arrives)
    return float(np.quantile(waits, 0.99))


@pytest.mark.parametrize("small", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("giant", [0.2, 0.4, 0.6])
def test_floor_is_what_a_fluid_would_wait(small: float, giant: float) -> None:
    assert fluid_floor_s(small, giant, 3.0, 60.0) == pytest.approx(fluid_wait_s(small, giant, 3.0, 60.0), abs=0.02)


@pytest.mark.parametrize("backfills", [False, True])
def test_giants_that_leave_room_for_the_rest_make_nobody_wait(backfills: bool) -> None:
    setup = Setup(COSTS, rule="oracle", sheds=False, backfills=backfills, decode=CONFIG, prefill=RouterConfig(100_000))
    small, giants = mixes(setup, small_ones(200, 5.0), 20, every_s=10.0)
    assert (len(small), len(giants)) == (200, 3)
    assert max(grant_waits_s(small)) == 0.0
    assert all(stay_s == pytest.approx(199 * 0.01, abs=0.05) for stay_s in stays_s(giants))


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
