"""A few giant requests among small ones: do small ones wait longer, and is any giant left behind?

    python -m bench.simulate.giants --trace azure_2023_conv.csv --rates 25.5 31.7 --shares 20 60

The small ones are the trace's; a giant's prompt takes `--shares` percent of the pool, and one comes every `--every`
seconds. Waits are those for the decode worker's grant, after which nothing is queued for memory. Beside them:

floor   what a fluid would wait at the 99th percentile, first come first served, without bursts and with nothing lost
        while room is made: small ones fill a share r of the pool, a giant takes g of it for h seconds, and those that
        come last before its end wait h (r + g - 1) / r
bound   none younger passes a giant after `--max-bypass-s`; what runs then ends within the longest stay that was seen
"""

from __future__ import annotations

import argparse
import math
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


def with_giants(small: list[Arrival], prompt_tokens: int, every_s: float) -> list[Arrival]:
    """The same small ones, and giants between them."""
    count = int(small[-1].at_s / every_s)
    giants = [Arrival((number + 0.5) * every_s, prompt_tokens, _OUTPUT_TOKENS) for number in range(count)]
    return sorted([*small, *giants], key=lambda arrival: arrival.at_s)


def grant_waits_s(stories: list[Story]) -> list[float]:
    """From the prompt's being let in to the grant: what waits for memory on a decode worker."""
    return [
        max(story.granted_s - story.admitted_s, 0.0)
        for story in stories
        if story.granted_s is not None and story.admitted_s is not None
    ]


def stays_s(stories: list[Story]) -> list[float]:
    """From the grant to the end: how long each held its room."""
    return [
        story.finished_s - story.granted_s
        for story in stories
        if story.finished_s is not None and story.granted_s is not None
    ]


def filled_share(stories: list[Story], pool: int) -> float:
    """Of the pool, over the time in which requests came."""
    filled = sum(
        (story.finished_s - story.granted_s) * (story.arrival.prompt_tokens + story.output_tokens / 2)
        for story in stories
        if story.finished_s is not None and story.granted_s is not None
    )
    return filled / (stories[-1].arrival.at_s - stories[0].arrival.at_s) / pool


def fluid_floor_s(small: float, giant: float, stay_s: float, every_s: float, beyond: float = 0.01) -> float:
    """The wait that `beyond` of the small ones exceed. small, giant: shares of the pool.

    While a giant stays, the wait of one that comes t seconds after it grows as t (small + giant - 1) / (1 - giant)
    until its turn falls behind the giant's end, and shrinks as t (1 - small) from there on.
    """
    lacking = small + giant - 1
    if lacking <= 0 or small >= 1:
        return 0.0 if lacking <= 0 else math.inf
    most_s = stay_s * lacking / small
    seconds_per_wait = (1 - giant) / lacking + 1 / (1 - small)
    return max(most_s - beyond * every_s / seconds_per_wait, 0.0)


@dataclass(frozen=True, slots=True)
class Mix:
    """One run with giants, beside one without."""

    alone: list[Story]
    small: list[Story]
    giants: list[Story]

    def line(self, asked: argparse.Namespace, share: float) -> str:
        """One line of the table."""
        without, beside = quantiles(grant_waits_s(self.alone))[2], quantiles(grant_waits_s(self.small))[2]
        stay_s = sum(stays_s(self.giants)) / len(self.giants)
        floor_s = fluid_floor_s(filled_share(self.alone, asked.pool), share / 100, stay_s, asked.every)
        bound_s = asked.max_bypass_s + max(stays_s([*self.small, *self.giants]))
        times = f"{beside / without:.2f}" if without > _NOTHING_S else "-"
        lost = sum(bool(story.refused) for story in [*self.small, *self.giants])
        return (
            f"{share:>7.0f}%{without:>10.2f}{beside:>8.2f}{times:>8}{floor_s:>8.2f}"
            f"{stay_s:>8.2f}{max(grant_waits_s(self.giants)):>11.2f}{bound_s:>8.2f}{lost:>9}"
        )


_NOTHING_S = 0.005
"""A wait that is none: no multiple of it says anything."""


def setup_of(asked: argparse.Namespace) -> Setup:
    """The workers."""
    costs = load_costs("h200_llama8b")
    decode = RouterConfig(
        asked.pool, max_running=1024, max_bypasses=asked.max_bypasses, max_bypass_s=asked.max_bypass_s
    )
    return Setup(
        costs,
        asked.prefill,
        1,
        backfills=asked.backfill,
        reserve_ahead_s=asked.reserve_ahead_s,
        decode=decode,
        prefill=replace(decode, capacity_slots=costs.pool_slots),
    )


def mixes(setup: Setup, small: list[Arrival], share: float, every_s: float) -> tuple[list[Story], list[Story]]:
    """Run both kinds together; small ones and giants."""
    size = int(share / 100 * setup.decode.capacity_slots)
    stories = simulate(setup, with_giants(small, size, every_s)).stories
    return (
        [story for story in stories if story.arrival.prompt_tokens != size],
        [story for story in stories if story.arrival.prompt_tokens == size],
    )


def main() -> None:
    """Every rate without giants, then with those of each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rates", type=float, nargs="+", default=[30.0], help="small requests a second")
    parser.add_argument("--pool", type=int, default=100_000, help="KV slots of the decode worker")
    parser.add_argument("--shares", type=float, nargs="+", default=[60.0], help="prompts of giants, %% of the pool")
    parser.add_argument("--every", type=float, default=30.0, help="seconds between giants")
    parser.add_argument("--prefill", type=int, default=3)
    parser.add_argument("--max-bypasses", type=int, default=64)
    parser.add_argument("--max-bypass-s", type=float, default=5.0)
    parser.add_argument("--backfill", action="store_true", help="let those pass that end before the giant starts")
    parser.add_argument(
        "--reserve-ahead-s", type=float, default=math.inf, help="ask for room so long before it is used"
    )
    asked = parser.parse_args()
    setup = setup_of(asked)
    print("small ones' wait, p99 s: without giants, with, times, floor; giants' stay, longest wait, bound; turned away")
    for rate in asked.rates:
        small = scaled(read_trace(asked.trace, asked.requests), rate)
        alone = simulate(setup, small).stories
        print(f"{rate:g}/s: small ones fill {filled_share(alone, asked.pool):.0%} of the pool")
        for share in asked.shares:
            print(Mix(alone, *mixes(setup, small, share, asked.every)).line(asked, share), flush=True)


if __name__ == "__main__":
    main()
