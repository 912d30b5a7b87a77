"""One simulation, from setup and arrivals to figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from bench.simulate.figures import Figures, Slo, quantiles, weighted_quantiles
from bench.simulate.fleet import Fleet, Setup
from bench.simulate.selectors import SELECTORS
from bench.simulate.story import Story
from bench.simulate.trace import Arrival


def simulate(setup: Setup, arrivals: list[Arrival]) -> Fleet:
    """Run it. Raises KeyError for an unknown rule or selector."""
    fleet = Fleet(setup, SELECTORS[setup.selector])
    fleet.run(arrivals)
    return fleet


def figures_of(fleet: Fleet, slo: Slo) -> Figures:
    """What came of a run."""
    computed = [worker.computed_tokens for worker in fleet.prefill]
    cached = sum(worker.cached_tokens for worker in fleet.prefill)
    return replace(
        summary(fleet.stories, fleet.gaps, slo),
        cached_share=cached / max(cached + sum(computed), 1),
        imbalance=max(computed) * len(computed) / max(sum(computed), 1),
    )


def summary(stories: list[Story], seen_gaps: list[tuple[float, int]], slo: Slo) -> Figures:
    """What requests tell by themselves; figures of workers are NaN.

    Goodput counts over the time in which requests came, so that the tail of the last ones does not dilute it.
    """
    span_s = stories[-1].arrival.at_s - stories[0].arrival.at_s
    done = [story for story in stories if story.finished_s is not None]
    good = sum(story.meets(slo.ttft_s, slo.tpot_s) for story in stories)
    gaps = np.array(seen_gaps, dtype=np.float64).reshape(-1, 2)
    took_s = max((_finished_s(story) for story in done), default=0.0)
    return Figures(
        offered_per_s=len(stories) / span_s,
        goodput_per_s=good / span_s,
        good_share=good / len(stories),
        ttft_s=quantiles([story.ttft_s for story in stories if story.ttft_s is not None]),
        tpot_s=quantiles([story.tpot_s for story in done if story.tpot_s is not None]),
        itl_s=weighted_quantiles(gaps[:, 0], gaps[:, 1]),
        e2e_s=quantiles([_finished_s(story) - story.arrival.at_s for story in done]),
        output_tokens_per_s=sum(story.output_tokens for story in done) / took_s if took_s else 0.0,
        num_requests=len(stories),
        refused_share=sum(bool(story.refused) for story in stories) / len(stories),
        preempted_share=sum(story.num_preemptions > 0 for story in stories) / len(stories),
        preemptions=sum(story.num_preemptions for story in stories),
        cached_share=math.nan,
        imbalance=math.nan,
    )


def _finished_s(story: Story) -> float:
    assert story.finished_s is not None
    return story.finished_s
