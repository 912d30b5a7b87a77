"""Predicted waits beside those that came of them, at the prefill workers and at the decode workers.

    python -m bench.simulate.waits --trace azure_2023_conv.csv --requests 2500 --rate 45 --pool 100000 --prefill 3
    python -m bench.simulate.waits --trace azure_2023_conv.csv --rate 90 --burst-s 4 --every-s 12 --prefill 6 --all

    python -m bench.simulate.waits --trace azure_2023_conv.csv --rate 45 --within 2

One line for each kind of worker: means, and how far predictions are off; then one for each range of predictions. The
first fifth of the requests, which finds the pool empty, is left out but for `--all`. With `--within S` instead: what
share of all requests has its first token within S seconds, at no more than 50 ms a token, where nobody is refused early
and where those are that are predicted to wait longer by a half, by three quarters and by all of the prediction.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench.simulate.cost import load_costs
from bench.simulate.fleet import Setup
from bench.simulate.measure import simulate
from bench.simulate.story import Story
from bench.simulate.trace import Arrival, in_bursts, lengthened, read_trace, scaled
from services.router.survival import FloatArray
from services.router.work import RouterConfig

_CONFIDENCES = (0.0, 0.5, 0.75, 1.0)
"""`shed_confidence`; 0 refuses nobody early."""
_TPOT_S = 0.05
_RANGES_S = (0.0, 0.05, 0.25, 1.0, 3.0, 10.0, 100.0)


def waits(stories: list[Story]) -> dict[str, FloatArray]:
    """Where -> [n, 2] predicted and observed seconds of all that were let in there."""
    prefill = [
        (one.predicted_prefill_s, one.admitted_s - one.arrival.at_s) for one in stories if one.admitted_s is not None
    ]
    grant = [
        (one.predicted_grant_s, one.granted_s - one.reserved_s)
        for one in stories
        if one.granted_s is not None and one.reserved_s is not None
    ]
    return {"prefill": np.array(prefill).reshape(-1, 2), "decode": np.array(grant).reshape(-1, 2)}


def lines(name: str, pairs: FloatArray) -> list[str]:
    """The table of one kind of worker."""
    predicted, observed = pairs[:, 0], pairs[:, 1]
    off = np.abs(predicted - observed)
    median, p99 = np.quantile(off, (0.5, 0.99))
    table = [
        f"{name:<16}{len(pairs):>8}{predicted.mean():>12.2f}{observed.mean():>12.2f}"
        f"{off.mean():>12.2f}{median:>10.2f}{p99:>10.2f}"
    ]
    for low, high in pairwise(_RANGES_S):
        chosen = (predicted >= low) & (predicted < high)
        if chosen.any():
            mean, spread = observed[chosen].mean(), np.quantile(observed[chosen], (0.1, 0.9))
            table.append(
                f"  {f'{low:g} to {high:g} s':<14}{chosen.sum():>8}{predicted[chosen].mean():>12.2f}{mean:>12.2f}"
                f"{spread[0]:>12.2f} to {spread[1]:.2f}"
            )
    return table


def refusal_line(setup: Setup, arrivals: list[Arrival], confidence: float, within_s: float, skipped: int) -> str:
    """What comes of refusing early with this confidence; the first `skipped` requests are not counted."""
    decode = replace(setup.decode, shed_confidence=confidence)
    refusing = replace(setup, queue_budget_s=within_s, sheds=confidence > 0, decode=decode)
    stories = simulate(refusing, arrivals).stories[skipped:]
    good = np.mean([story.meets(within_s, _TPOT_S) for story in stories])
    ttft_s = [story.ttft_s for story in stories if story.ttft_s is not None]
    return f"confidence {confidence:<5g} {good:>7.1%} good, TTFT p50 {np.median(ttft_s):.2f} s"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--pool", type=int, default=100_000, help="KV slots of the decode worker")
    parser.add_argument("--prefill", type=int, default=3, help="prefill workers")
    parser.add_argument("--queue-budget", type=float, default=1000.0, help="how long one may wait, s")
    parser.add_argument("--burst-s", type=float, help="arrivals come in bursts so long, at --rate within them")
    parser.add_argument("--every-s", type=float, help="seconds from one burst's start to the next one's")
    parser.add_argument(
        "--output-times", type=float, default=1.0, help="make the trace's outputs so many times as long"
    )
    parser.add_argument("--max-new-tokens", type=int, default=2048, help="what every client asks for")
    parser.add_argument("--all", action="store_true", help="count the first fifth as well")
    parser.add_argument("--within", type=float, help="compare confidences of early refusal by this bound on TTFT, s")
    parser.add_argument("--costs", default="h200_llama8b")
    asked = parser.parse_args()
    costs = load_costs(asked.costs)
    setup = Setup(
        costs,
        asked.prefill,
        max_new_tokens=asked.max_new_tokens,
        queue_budget_s=asked.queue_budget,
        sheds=False,
        decode=RouterConfig(asked.pool, max_running=1024),
        prefill=RouterConfig(costs.pool_slots),
    )
    arrivals = scaled(lengthened(read_trace(asked.trace, asked.requests), asked.output_times), asked.rate)
    if asked.burst_s:
        arrivals = in_bursts(arrivals, asked.burst_s, asked.every_s or parser.error("--burst-s needs --every-s"))
    skipped = 0 if asked.all else len(arrivals) // 5
    if asked.within:
        for confidence in _CONFIDENCES:
            print(refusal_line(setup, arrivals, confidence, asked.within, skipped), flush=True)
        return
    stories = simulate(setup, arrivals).stories
    head = f"{'':<16}{'count':>8}{'predicted':>12}{'observed':>12}{'off by':>12}{'median':>10}{'p99':>10}"
    print(f"{head}   (seconds; ranges: means, then p10 to p90)")
    for name, pairs in waits(stories[skipped:]).items():
        print("\n".join(lines(name, pairs)))


if __name__ == "__main__":
    main()
