"""A few requests through simulated workers, whose times can be worked out by hand."""

from dataclasses import replace

import pytest

from bench.simulate.cost import Costs, load_costs
from bench.simulate.figures import Slo
from bench.simulate.fleet import Fleet, Setup
from bench.simulate.measure import figures_of, simulate
from bench.simulate.rules import RULES
from bench.simulate.selectors import SELECTORS
from bench.simulate.trace import Arrival
from services.router.output_length import LengthConfig
from services.router.work import RouterConfig

COSTS = Costs("by hand", 0.01, 0.0, 0.0, 1e-4, 0.0, 1000, 1.0, 0.0, 100_000)
SETUP = Setup(COSTS, decode=RouterConfig(100_000), prefill=RouterConfig(100_000))


def burst(count: int, prompt: int, output: int, apart_s: float = 0.0) -> list[Arrival]:
    return [Arrival(number * apart_s, prompt, output) for number in range(count)]


def check_empty(fleet: Fleet) -> None:
    """Nothing is left anywhere."""
    for worker in fleet.prefill:
        worker.router.check_integrity()
        assert (worker.num_inside, worker.router.load.held_slots) == (0, 0)
    for decode in fleet.decode:
        decode.router.check_integrity()
        assert (decode.num_inside, decode.held, decode.router.load.held_slots) == (0, 0, 0)


def test_times_of_one_request_follow_the_costs() -> None:
    fleet = simulate(SETUP, burst(1, 1000, 11))
    (story,) = fleet.stories
    assert story.ttft_s == pytest.approx(0.1)
    transfer_s = 128 * 1000 / 1e9  # the grant was there at once, so only the tail is left
    assert story.finished_s == pytest.approx(0.1 + transfer_s + 10 * 0.01)
    check_empty(fleet)


def test_prompts_queue_for_compute() -> None:
    first, second = simulate(SETUP, burst(2, 2000, 2)).stories
    first_chunk_s, with_second_s, rest_s = 1872 * 1e-4, (128 + 1920) * 1e-4, 0.01
    # The first one is alone in its step, so that its tail is cut; the second has come when that is computed.
    assert first.ttft_s == pytest.approx(first_chunk_s + with_second_s)
    assert second.ttft_s == pytest.approx(first_chunk_s + with_second_s + rest_s)


def test_prompts_with_others_behind_them_are_not_cut() -> None:
    slow_start = Arrival(0.0, 100, 1)
    _, first, second = simulate(SETUP, [slow_start, *burst(2, 1000, 2)]).stories
    assert first.ttft_s == pytest.approx(0.01 + 0.1 + 0.0872)  # the second one's first chunk shares its step
    assert second.ttft_s == pytest.approx(0.01 + 0.1 + 0.1)


def test_a_step_of_prompts_takes_its_fixed_time_for_each_chunk() -> None:
    costs = replace(COSTS, prefill_step_s=0.05)
    (short, long) = simulate(replace(SETUP, costs=costs), [Arrival(0.0, 100, 1), Arrival(1.0, 1000, 1)]).stories
    assert short.ttft_s == pytest.approx(costs.prompt_s(100)) == pytest.approx(0.06)
    assert long.ttft_s == pytest.approx(costs.prompt_s(1000)) == pytest.approx(0.2)


def test_prompts_take_longer_beside_a_decode_worker_of_the_same_machine() -> None:
    shared = replace(SETUP, costs=replace(COSTS, beside_decode=0.5))
    alone, beside = simulate(shared, [Arrival(0.0, 100, 1000), Arrival(1.0, 1000, 2)]).stories
    assert alone.ttft_s == pytest.approx(0.01)
    assert beside.ttft_s == pytest.approx(0.15)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_serves_all_and_leaves_nothing(rule: str) -> None:
    tight = replace(SETUP, rule=rule, decode=RouterConfig(6000, lengths=LengthConfig(prior_tokens=20)))
    fleet = simulate(replace(tight, max_new_tokens=400), burst(60, 300, 200, 0.02))
    assert all(story.finished_s is not None for story in fleet.stories)
    check_empty(fleet)


@pytest.mark.parametrize("rule", ["ours", "aggressive"])
@pytest.mark.parametrize("extent_slots", [1, 8, 64])
def test_grants_are_taken_back_and_given_again_whatever_the_extents(rule: str, extent_slots: int) -> None:
    lengths = LengthConfig(prior_tokens=20)
    tight = RouterConfig(10_000, extent_slots=extent_slots, lengths=lengths)
    fleet = simulate(
        replace(SETUP, num_prefill=2, rule=rule, max_new_tokens=400, decode=tight), burst(60, 600, 100, 0.02)
    )
    assert all(story.finished_s is not None for story in fleet.stories)
    check_empty(fleet)


def test_aggressive_preempts_where_oracle_and_limit_do_not() -> None:
    tight = replace(SETUP, max_new_tokens=400, decode=RouterConfig(6000))
    arrivals = burst(60, 300, 200, 0.02)
    preempted = {
        rule: sum(story.num_preemptions for story in simulate(replace(tight, rule=rule), arrivals).stories)
        for rule in ("aggressive", "oracle", "limit")
    }
    assert preempted["aggressive"] > 0
    assert (preempted["oracle"], preempted["limit"]) == (0, 0)


def test_what_waits_beyond_its_budget_is_turned_away() -> None:
    tight = replace(SETUP, max_new_tokens=1000, queue_budget_s=0.5, decode=RouterConfig(3000))
    fleet = simulate(tight, burst(20, 1000, 900))
    refused = [story for story in fleet.stories if story.refused]
    assert refused
    assert all(story.finished_s is not None for story in fleet.stories if not story.refused)
    check_empty(fleet)


@pytest.mark.parametrize("selector", SELECTORS)
def test_every_selector_uses_all_workers(selector: str) -> None:
    setup = replace(SETUP, num_prefill=3, num_decode=2, selector=selector)
    fleet = simulate(setup, burst(60, 1000, 50, 0.03))
    assert all(worker.computed_tokens for worker in fleet.prefill)
    assert figures_of(fleet, Slo(1.0, 0.1)).good_share == 1.0
    check_empty(fleet)


def test_selection_by_cache_events_finds_prefixes_that_round_robin_misses() -> None:
    arrivals = [
        Arrival(3.0 * n, 2048 + 512, 5, (n % 4, 10 + n % 4, 20 + n % 4, 30 + n % 4, 100 + n)) for n in range(40)
    ]
    cached = {
        selector: figures_of(
            simulate(replace(SETUP, num_prefill=3, selector=selector), arrivals), Slo(1, 1)
        ).cached_share
        for selector in ("ours", "round robin")
    }
    assert cached["ours"] == pytest.approx(36 * 2048 / (40 * 2560), rel=0.01)
    assert cached["ours"] > cached["round robin"]


def test_fit_of_the_card_gives_back_what_was_measured() -> None:
    assert load_costs("h200_llama8b").decode_s(64, 64 * 1024) == pytest.approx(6.45e-3, rel=0.05)
    with pytest.raises(FileNotFoundError):
        load_costs("nothing")
