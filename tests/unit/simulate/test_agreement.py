"""What is said of rounds of replays and simulations."""

from dataclasses import replace

from bench.agreement import Round, between, simulated, summary
from bench.simulate.cost import Costs
from bench.simulate.trace import Arrival

COSTS = Costs("a fit", 0.01, 0.0, 0.0, 1e-3, 0.0, 1000, 1.0, 0.0, 100_000)
ARRIVALS = [Arrival(number * 1.0, 100, 11) for number in range(5)]


def test_a_replay_between_two_fits_is_simulated_with_their_mean() -> None:
    mean = between(COSTS, replace(COSTS, step_s=0.03, prefill_token_s=2e-3))
    assert (mean.step_s, mean.prefill_token_s, mean.pool_slots) == (0.02, 1.5e-3, 100_000)


def test_summary_compares_medians_and_tells_the_worst_rounds() -> None:
    fast, slow = simulated(COSTS, ARRIVALS, 512), simulated(replace(COSTS, prefill_token_s=2e-3), ARRIVALS, 512)
    line = summary([Round(fast, fast), Round(slow, fast), Round(fast, fast)])[0]
    assert line == ("TTFT p50 s   simulated 0.1, replayed 0.1: +0.0%; rounds +0% to +100%; replays 0.1 to 0.1")
