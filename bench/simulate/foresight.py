"""What knowing the future would be worth: small ones' waits where each giant starts when that hurts them least.

    python -m bench.simulate.foresight --trace azure_2023_conv.csv --requests 6000 --rate 31.7 --share 60

A picture of one decode worker that leaves out all but its room: whoever has room stays as long as in a run without
giants, in the prompt's slots and half the output's; first come, first served; from its start on, a giant gets what
comes free until it has its room. For each giant in turn all starts within `--patience` seconds of its arrival are
tried, a quarter second apart, with all that is to come known; kept is the one with which the fewest small ones wait
more than twice what they wait, at the 99th percentile, without giants. No rule for the queue knows that much.
"""

from __future__ import annotations

import argparse
import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from bench.simulate.figures import quantiles
from bench.simulate.giants import options as giants_options
from bench.simulate.giants import setup_of, with_giants
from bench.simulate.measure import simulate
from bench.simulate.story import Story
from bench.simulate.trace import read_trace, scaled

_STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Want:
    """Room that is wanted."""

    since_s: float
    slots: float
    stay_s: float


def wants_of(stories: list[Story]) -> list[Want]:
    """What small ones wanted, in the order in which they asked."""
    wants = [
        Want(
            story.reserved_s, story.arrival.prompt_tokens + story.output_tokens / 2, story.finished_s - story.granted_s
        )
        for story in stories
        if story.reserved_s is not None and story.granted_s is not None and story.finished_s is not None
    ]
    return sorted(wants, key=lambda want: want.since_s)


def waits_s(small: list[Want], giants: list[Want], slots: float) -> list[float]:
    """What each small one waits where giants go first from the moment they want room."""
    waits: list[float] = []
    queue: deque[Want] = deque()
    first: deque[Want] = deque()
    every = [*small, *giants]
    # When, who comes (-1: somebody leaves), the slots that come free.
    events = [(want.since_s, number, 0.0) for number, want in enumerate(every)]
    heapq.heapify(events)
    free = slots
    while events:
        now_s, number, freed = heapq.heappop(events)
        free += freed
        if number >= 0:
            (queue if number < len(small) else first).append(every[number])
        while (line := first or queue) and line[0].slots <= free:
            want = line.popleft()
            free -= want.slots
            heapq.heappush(events, (now_s + want.stay_s, -1, want.slots))
            if line is queue:
                waits.append(now_s - want.since_s)
    return waits


def best_starts(small: list[Want], giants: list[Want], slots: float, patience_s: float, most_s: float) -> list[Want]:
    """The giants, each as late as is best for the small ones: the fewest of them wait longer than `most_s`."""
    chosen: list[Want] = []
    for giant in giants:
        starts = [
            Want(giant.since_s + late_s, giant.slots, giant.stay_s) for late_s in np.arange(0, patience_s, _STEP_S)
        ]
        chosen.append(min(starts, key=lambda start: _harm(waits_s(small, [*chosen, start], slots), most_s)))
    return chosen


def _harm(waits: list[float], most_s: float) -> tuple[int, float]:
    beyond = [wait - most_s for wait in waits if wait > most_s]
    return len(beyond), sum(beyond)


def main() -> None:
    """Without giants, with giants at once, with giants at their best moments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[giants_options()],
        conflict_handler="resolve", add_help=False,
    )  # fmt: skip
    parser.add_argument("--rate", type=float, required=True, help="small requests a second")
    parser.add_argument("--share", type=float, default=60.0, help="prompts of giants, %% of the pool")
    parser.add_argument("--stay", type=float, default=1.7, help="how long a giant holds its room, s")
    parser.add_argument("--patience", type=float, nargs="+", default=[5.0, 10.0, 15.0], help="of giants, s")
    asked = parser.parse_args()
    arrivals = scaled(read_trace(asked.trace, asked.requests), asked.rate)
    small = wants_of(simulate(setup_of(asked, 1), arrivals).stories)
    size = int(asked.share / 100 * asked.pool)
    giants = [
        Want(one.at_s, size, asked.stay)
        for one in with_giants(arrivals, size, asked.every)
        if one.prompt_tokens == size
    ]
    alone_s = quantiles(waits_s(small, [], asked.pool))[2]
    print(f"small ones wait, p99: {alone_s:.2f} s without giants", flush=True)
    for patience_s in (_STEP_S, *asked.patience):
        starts = best_starts(small, giants, asked.pool, patience_s, 2 * alone_s)
        wait_s = quantiles(waits_s(small, starts, asked.pool))[2]
        print(f"giants start within {patience_s:g} s: {wait_s:.2f} s, {wait_s / alone_s:.1f} times", flush=True)


if __name__ == "__main__":
    main()
