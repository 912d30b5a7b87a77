"""A few giant requests among small ones: do small ones wait longer, and is any giant left behind?

    python -m bench.simulate.giants --trace azure_2023_conv.csv --rate 30 --pool 100000 --giant 60000 --every 10

The small ones are the trace's; the giants' prompts have `--giant` tokens and come every `--every` seconds. Waits are
those for the decode worker's grant, after which nothing is queued for memory, and for the first token.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.simulate.cost import load_costs
from bench.simulate.figures import quantiles
from bench.simulate.fleet import Setup
from bench.simulate.measure import simulate
from bench.simulate.story import Story
from bench.simulate.trace import Arrival, read_trace, scaled
from services.router.work import RouterConfig


def with_giants(small: list[Arrival], prompt_tokens: int, output_tokens: int, every_s: float) -> list[Arrival]:
    """The same small ones, and giants between them."""
    count = int(small[-1].at_s / every_s)
    giants = [Arrival((number + 0.5) * every_s, prompt_tokens, output_tokens) for number in range(count)]
    return sorted([*small, *giants], key=lambda arrival: arrival.at_s)


def grant_waits_s(stories: list[Story]) -> list[float]:
    """From the prompt's being let in to the grant: what waits for memory on a decode worker."""
    return [
        max(story.granted_s - story.admitted_s, 0.0)
        for story in stories
        if story.granted_s is not None and story.admitted_s is not None
    ]


def report(name: str, stories: list[Story]) -> None:
    """One line of the table."""
    waits, first = grant_waits_s(stories), [story.ttft_s for story in stories if story.ttft_s is not None]
    wait, ttft = quantiles(waits), quantiles(first)
    refused = sum(bool(story.refused) for story in stories)
    print(
        f"{name:<24}{len(stories):>8}{refused:>9}{wait[0]:>10.3f}{wait[2]:>10.3f}{max(waits, default=0.0):>10.3f}"
        f"{ttft[0]:>10.3f}{ttft[2]:>10.3f}"
    )


def main() -> None:
    """Run without and with giants, print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=30.0, help="small requests a second")
    parser.add_argument("--pool", type=int, default=100_000, help="KV slots of the decode worker")
    parser.add_argument("--giant", type=int, default=60_000, help="prompt tokens of a giant")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between giants")
    parser.add_argument("--prefill", type=int, default=3)
    parser.add_argument("--max-bypasses", type=int, default=64)
    parser.add_argument("--max-bypass-s", type=float, default=5.0)
    asked = parser.parse_args()
    small = scaled(read_trace(asked.trace, asked.requests), asked.rate)
    costs = load_costs("h200_llama8b")
    decode = RouterConfig(
        asked.pool, max_running=1024, max_bypasses=asked.max_bypasses, max_bypass_s=asked.max_bypass_s
    )
    setup = Setup(costs, asked.prefill, 1, decode=decode, prefill=replace(decode, capacity_slots=costs.pool_slots))
    print(f"{'':<24}{'count':>8}{'refused':>9}{'wait p50':>10}{'p99':>10}{'max s':>10}{'TTFT p50':>10}{'p99 s':>10}")
    report("small, without giants", simulate(setup, small).stories)
    mixed = simulate(setup, with_giants(small, asked.giant, 200, asked.every)).stories
    report("small, with giants", [story for story in mixed if story.arrival.prompt_tokens != asked.giant])
    report("giants", [story for story in mixed if story.arrival.prompt_tokens == asked.giant])


if __name__ == "__main__":
    main()
