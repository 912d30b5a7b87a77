"""Do small prompts wait behind the computing of giant ones? Prompts are computed in the order they were let in.

    python -m bench.simulate.queued_prompts --trace azure_2023_conv.csv --workers 1 3 8 --giants 30000 60000

Room is no matter here: pools are the cost file's. Rates and giants are for each prefill worker; what is printed are
quantiles of the small ones' time to the first token, and the longest of the giants'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.simulate.cost import load_costs
from bench.simulate.figures import quantiles
from bench.simulate.fleet import Setup
from bench.simulate.giants import with_giants
from bench.simulate.measure import simulate
from bench.simulate.trace import read_trace, scaled
from services.router.work import RouterConfig


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--rate", type=float, default=12.0, help="small requests a second, for each prefill worker")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3, 8], help="prefill workers")
    parser.add_argument("--giants", type=int, nargs="+", default=[30_000, 60_000], help="prompt tokens of giants")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between giants, for each prefill worker")
    parser.add_argument("--costs", default="h200_llama8b")
    asked = parser.parse_args()
    costs, trace = load_costs(asked.costs), read_trace(asked.trace, asked.requests)
    pool = RouterConfig(costs.pool_slots, max_running=1024)
    print(f"{'workers':>8}{'giants':>8}{'p50':>9}{'p90':>9}{'p99':>9}{'giants, longest':>18}   (first token, s)")
    for workers in asked.workers:
        setup = Setup(
            costs, workers, max(workers // 2, 1), queue_budget_s=1000.0, sheds=False, decode=pool, prefill=pool
        )
        small = scaled(trace, asked.rate * workers)
        for size in (0, *asked.giants):
            arrivals = with_giants(small, size, asked.every / workers) if size else small
            waits: dict[bool, list[float]] = {False: [], True: []}
            for story in simulate(setup, arrivals).stories:
                waits[story.arrival.prompt_tokens == size].append(story.ttft_s or 0.0)
            p50, p90, p99 = quantiles(waits[False])
            print(
                f"{workers:>8}{size:>8}{p50:>9.3f}{p90:>9.3f}{p99:>9.3f}{max(waits[True], default=0.0):>18.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
