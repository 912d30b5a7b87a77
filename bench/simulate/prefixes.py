"""How much of what one big shared prefix cache would find several workers find, by the weight of what is missing.

    python -m bench.simulate.prefixes --trace mooncake_conversation_trace.jsonl --half second --workers 8 --weights 1 6

A weight is chosen on one half of a trace and shown on the other; each half starts with empty caches.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bench.simulate.blocks import BlockCache
from bench.simulate.cost import load_costs
from bench.simulate.figures import Figures, Slo
from bench.simulate.fleet import Setup
from bench.simulate.measure import figures_of, simulate
from bench.simulate.selectors import SELECTORS
from bench.simulate.trace import BLOCK_TOKENS, Arrival, read_trace, scaled
from services.router.work import RouterConfig


def half_of(arrivals: list[Arrival], which: str) -> list[Arrival]:
    """The first or the second half, or all; times begin at 0."""
    middle = len(arrivals) // 2
    part = {"first": arrivals[:middle], "second": arrivals[middle:], "all": arrivals}[which]
    return [replace(one, at_s=one.at_s - part[0].at_s) for one in part]


def shared_cache_hits(arrivals: list[Arrival], num_blocks: int) -> float:
    """Share of prompt tokens that one cache of so many blocks finds, every prompt in it before the next one comes."""
    cache, found = BlockCache(num_blocks), 0
    for one in arrivals:
        found += min(cache.match(one.blocks) * BLOCK_TOKENS, one.prompt_tokens - 1)
        cache.insert(one.blocks)
    return found / sum(one.prompt_tokens for one in arrivals)


def row(name: str, best: float, one: Figures) -> str:
    """One line of the table."""
    ttft = " / ".join(f"{value:.2f}" for value in one.ttft_s)
    return (
        f"{name:<24}{best:>8.3f}{one.cached_share:>8.3f}{one.cached_share / best:>8.1%}{one.imbalance:>11.2f}   {ttft}"
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--half", choices=("first", "second", "all"), default="all")
    parser.add_argument("--workers", type=int, nargs="+", default=[8], help="prefill workers; half as many decode")
    parser.add_argument("--weights", type=float, nargs="+", default=[1.0, 6.0])
    parser.add_argument("--selector", choices=tuple(SELECTORS), default="ours")
    parser.add_argument("--rate", type=float, default=1.25, help="requests a second for each prefill worker")
    parser.add_argument("--costs", default="h200_llama8b")
    asked = parser.parse_args()
    costs, arrivals = load_costs(asked.costs), half_of(read_trace(asked.trace), asked.half)
    router = RouterConfig(costs.pool_slots)
    print(f"{'workers, weight':<24}{'one':>8}{'found':>8}{'share':>8}{'imbalance':>11}   TTFT p50 / p90 / p99, s")
    for count in asked.workers:
        best = shared_cache_hits(arrivals, count * costs.pool_slots // BLOCK_TOKENS)
        for weight in asked.weights:
            setup = Setup(
                costs,
                count,
                max(count // 2, 1),
                selector=asked.selector,
                missing_weight=weight,
                sheds=False,
                decode=replace(router, max_running=1024),
                prefill=router,
            )
            figures = figures_of(simulate(setup, scaled(arrivals, asked.rate * count)), Slo(10.0, 0.05))
            print(row(f"{count}, {weight:g}", best, figures), flush=True)


if __name__ == "__main__":
    main()
