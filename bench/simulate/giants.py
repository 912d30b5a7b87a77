"""A few giant requests among small ones: do small ones wait longer, and is any giant left behind?

    python -m bench.simulate.giants --trace azure_2023_conv.csv --requests 6000 --rates 31.7 --shares 20 60
    python -m bench.simulate.giants --trace azure_2023_conv.csv --workers 1 2 4 8 --rates 38 --shares 60

The small ones are the trace's. A giant's prompt takes `--shares` percent of one decode worker's pool, and for each
worker one comes every `--every` seconds. Rates are for each decode worker too. Requests of the first tenth, which find
the pools empty, are left out, and giants come at several phases of their period, whose waits are taken together.

wait    for a decode worker's room, from when it is asked for, 99th percentile of small ones
first   their time to the first token, 99th percentile
even    both where no giants come, but so many more small ones that the pools are as full: what the load alone costs
bound   none younger passes a giant after `--max-bypass-s`; what runs then ends within the longest stay that was seen
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.simulate.cost import load_costs
from bench.simulate.figures import quantiles
from bench.simulate.fleet import Setup
from bench.simulate.measure import simulate
from bench.simulate.story import Story
from bench.simulate.trace import Arrival, read_trace, scaled
from services.router.work import RouterConfig

_OUTPUT_TOKENS = 200


def with_giants(small: list[Arrival], prompt_tokens: int, every_s: float, phase: float = 0.5) -> list[Arrival]:
    """The same small ones, and giants between them. phase: of the period, when the first comes. Raises ValueError
    where none would come."""
    count = math.ceil(small[-1].at_s / every_s - phase)
    if count < 1:
        raise ValueError(f"--every: the small ones come for {small[-1].at_s:.1f} s, so that no giant comes among them")
    giants = [Arrival((number + phase) * every_s, prompt_tokens, _OUTPUT_TOKENS) for number in range(count)]
    return sorted([*small, *giants], key=lambda arrival: arrival.at_s)


def grant_waits_s(stories: Sequence[Story]) -> list[float]:
    """What each waited for room on its decode worker."""
    return [
        story.granted_s - story.reserved_s
        for story in stories
        if story.granted_s is not None and story.reserved_s is not None
    ]


def stays_s(stories: Sequence[Story]) -> list[float]:
    """From the grant to the end: how long each held its room."""
    return [
        story.finished_s - story.granted_s
        for story in stories
        if story.finished_s is not None and story.granted_s is not None
    ]


def filled_share(stories: Sequence[Story], slots: int) -> float:
    """Of so many slots, over the time in which requests came."""
    filled = sum(
        (story.finished_s - story.granted_s) * (story.arrival.prompt_tokens + story.output_tokens / 2)
        for story in stories
        if story.finished_s is not None and story.granted_s is not None
    )
    return filled / (stories[-1].arrival.at_s - stories[0].arrival.at_s) / slots


@dataclass(frozen=True, slots=True)
class Served:
    """What became of both kinds, in one run or several."""

    small: list[Story]
    giants: list[Story]

    @property
    def wait_s(self) -> float:
        """Of small ones, 99th percentile."""
        return quantiles(grant_waits_s(self.small))[2]

    @property
    def first_s(self) -> float:
        """To the first token of small ones, 99th percentile."""
        return quantiles([story.ttft_s for story in self.small if story.ttft_s is not None])[2]

    def as_small(self, rate: float) -> float:
        """How many small ones a second fill the pools as much as both kinds did; `rate` of them came."""
        return rate * (1 + _room(self.giants) / _room(self.small))


def _room(stories: list[Story]) -> float:
    """Slots times seconds."""
    return sum(
        story.arrival.prompt_tokens * (story.finished_s - story.granted_s)
        for story in stories
        if story.finished_s is not None and story.granted_s is not None
    )


def served(setup: Setup, arrivals: list[Arrival], giant_tokens: int = 0) -> Served:
    """One run. giant_tokens: the prompts that are giants'."""
    stories = simulate(setup, arrivals).stories
    stories = stories[len(stories) // 10 :]
    giants = [story for story in stories if story.arrival.prompt_tokens == giant_tokens]
    return Served([story for story in stories if story.arrival.prompt_tokens != giant_tokens], giants)


def mixed(setup: Setup, small: list[Arrival], share: float, every_s: float, phases: int) -> Served:
    """Both kinds, at several phases of the giants' period. share: % of a pool."""
    size = int(share / 100 * setup.decode.capacity_slots)
    runs = [
        served(setup, with_giants(small, size, every_s / setup.num_decode, (number + 0.5) / phases), size)
        for number in range(phases)
    ]
    return Served([story for run in runs for story in run.small], [story for run in runs for story in run.giants])


def line(share: float, alone: Served, both: Served, even: Served, bypass_s: float) -> str:
    """One line of the table."""
    stays, waits = stays_s(both.giants), grant_waits_s(both.giants)
    bound_s = bypass_s + max([*stays_s(both.small), *stays], default=0.0)
    lost = sum(bool(story.refused) for story in [*both.small, *both.giants])
    return (
        f"{f'{share:g}%':>7}{both.wait_s:>8.2f}{_times(both.wait_s, alone.wait_s):>7}{even.wait_s:>8.2f}"
        f"{both.first_s:>9.2f}{_times(both.first_s, alone.first_s):>7}{even.first_s:>8.2f}"
        f"{sum(stays) / max(len(stays), 1):>9.2f}{max(waits, default=0.0):>9.2f}{bound_s:>8.2f}{lost:>6}"
    )


_HEAD = (
    f"{'giants':>7}{'wait':>8}{'times':>7}{'even':>8}{'first':>9}{'times':>7}{'even':>8}"
    f"{'stay':>9}{'longest':>9}{'bound':>8}{'lost':>6}"
)
_NOTHING_S = 0.005
"""A wait that is none: no multiple of it says anything."""


def _times(one_s: float, other_s: float) -> str:
    return f"{one_s / other_s:.1f}" if other_s > _NOTHING_S else "-"


def setup_of(asked: argparse.Namespace, num_decode: int) -> Setup:
    """The workers."""
    costs = load_costs("h200_llama8b")
    decode = RouterConfig(
        asked.pool, max_running=1024, max_bypasses=asked.max_bypasses, max_bypass_s=asked.max_bypass_s
    )
    return Setup(
        costs,
        asked.prefill * num_decode,
        num_decode,
        num_masters=asked.masters,
        backfills=asked.backfill,
        reserve_ahead_s=asked.reserve_ahead_s,
        decode=decode,
        prefill=replace(decode, capacity_slots=costs.pool_slots),
    )


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, help="only so many of its first arrivals")
    parser.add_argument("--rates", type=float, nargs="+", default=[30.0], help="small requests a second and worker")
    parser.add_argument("--pool", type=int, default=100_000, help="KV slots of a decode worker")
    parser.add_argument("--shares", type=float, nargs="+", default=[60.0], help="prompts of giants, %% of a pool")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between giants, for each decode worker")
    parser.add_argument("--phases", type=int, default=2, help="runs, each with giants at another phase of that")
    parser.add_argument("--workers", type=int, nargs="+", default=[1], help="decode workers")
    parser.add_argument("--masters", type=int, default=1, help="each knows of its own requests only")
    parser.add_argument("--prefill", type=int, default=3, help="prefill workers for each of them")
    parser.add_argument("--max-bypasses", type=int, default=64)
    parser.add_argument("--max-bypass-s", type=float, default=5.0)
    parser.add_argument("--backfill", action="store_true", help="let those pass that end before the giant starts")
    parser.add_argument(
        "--reserve-ahead-s", type=float, default=math.inf, help="ask for room so long before it is used"
    )
    return parser


def main() -> None:
    """Every number of workers and rate without giants, then with those of each size."""
    asked = options().parse_args()
    trace = read_trace(asked.trace, asked.requests)
    for workers in asked.workers:
        setup = setup_of(asked, workers)
        for rate in asked.rates:
            small = scaled(trace, rate * workers)
            alone = served(setup, small)
            filled = filled_share(alone.small, asked.pool * workers)
            print(f"{workers} decode workers, {rate:g}/s each: small ones fill {filled:.0%}; without giants", end=" ")
            print(f"wait {alone.wait_s:.2f}, first {alone.first_s:.2f} s\n{_HEAD}", flush=True)
            for share in asked.shares:
                both = mixed(setup, small, share, asked.every, asked.phases)
                even = served(setup, scaled(trace, both.as_small(rate) * workers))
                print(line(share, alone, both, even, asked.max_bypass_s), flush=True)


if __name__ == "__main__":
    main()
