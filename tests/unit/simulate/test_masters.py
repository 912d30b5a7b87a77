"""Several masters that know only of their own requests spread them all the same."""

import random

import numpy as np
import pytest

from bench.simulate.cost import Costs
from bench.simulate.fleet import Setup
from bench.simulate.giants import grant_waits_s
from bench.simulate.measure import simulate
from bench.simulate.trace import Arrival
from services.router.work import RouterConfig

COSTS = Costs("by hand", 0.01, 0.0, 0.0, 1e-6, 0.0, 1000, 1000.0, 0.0, 100_000)


def poisson(count: int, per_s: float) -> list[Arrival]:
    draws, at_s, arrivals = random.Random(3), 0.0, []
    for _ in range(count):
        at_s += draws.expovariate(per_s)
        arrivals.append(Arrival(at_s, draws.randint(200, 600), draws.randint(50, 150)))
    return arrivals


@pytest.mark.parametrize("num_masters", [1, 4])
def test_on_workers_with_room_for_all_nobody_waits_however_many_masters_choose(num_masters: int) -> None:
    """Two thirds of the pools are filled, and half turns over between two heartbeats."""
    pool, prefill = RouterConfig(10_000, max_running=1000), RouterConfig(100_000)
    setup = Setup(COSTS, 4, 4, rule="oracle", sheds=False, num_masters=num_masters, decode=pool, prefill=prefill)
    waits_s = grant_waits_s(simulate(setup, poisson(600, 60.0)).stories)
    assert len(waits_s) == 600
    assert np.quantile(waits_s, 0.99) < 0.1
