"""Several client processes, so that what is measured is the server and not one client's event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise

import httpx

from bench.replay.client import Asked, Play, play
from bench.simulate.story import Story
from bench.simulate.trace import Arrival

Gaps = list[tuple[float, int]]
_START_S = 3.0
"""Until every client process has imported what it needs."""


def stories_of(arrivals: list[Arrival], asked: Asked) -> list[Story]:
    """One for each arrival, nothing told yet."""
    limit = asked.max_new_tokens
    return [Story(n, arrival, limit or arrival.output_tokens) for n, arrival in enumerate(arrivals)]


async def play_all(stories: list[Story], asked: Asked, timeout_s: float, start_s: float) -> Gaps:
    """Send each request when its time after `start_s` (of the monotonic clock) has come; write the stories.

    Returns the gaps between events of the streams, as (seconds, tokens).
    """
    gaps: Gaps = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)

    def clock() -> float:
        return time.perf_counter() - start_s

    async with httpx.AsyncClient(timeout=timeout_s, limits=limits) as client, asyncio.TaskGroup() as group:

        async def one(story: Story) -> None:
            await asyncio.sleep(max(story.arrival.at_s - clock(), 0.0))
            came: list[float] = []
            tokens = await play(client, story, asked, Play(clock, came.append))
            if tokens:
                gaps.extend((later - earlier, 1) for earlier, later in pairwise(came))
            story.arrival = replace(story.arrival, output_tokens=tokens)

        for story in stories:
            group.create_task(one(story))
    return gaps


def played(arrivals: list[Arrival], asked: Asked, timeout_s: float, processes: int) -> tuple[list[Story], Gaps]:
    """Play all arrivals from so many processes, and wait for the last; stories in the arrivals' order."""
    stories = stories_of(arrivals, asked)
    start_s = time.perf_counter() + _START_S
    shares = [stories[first::processes] for first in range(processes)]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(_play_share, shares, *zip(*[(asked, timeout_s, start_s)] * processes, strict=True)))
    told = sorted((story for share, _ in answers for story in share), key=lambda story: story.number)
    return told, [gap for _, gaps in answers for gap in gaps]


def _play_share(stories: list[Story], asked: Asked, timeout_s: float, start_s: float) -> tuple[list[Story], Gaps]:
    gaps = asyncio.run(play_all(stories, asked, timeout_s, start_s))
    return stories, gaps
