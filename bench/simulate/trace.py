"""Arrivals: Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's JSON lines, scaled in time.

Azure LLM inference trace 2023 (Splitwise, ISCA'24); Mooncake traces (FAST'25), whose `hash_ids` name the blocks of 512
prompt tokens, equal where the tokens up to the block's end are equal.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a trace."""

    at_s: float
    """Since the first one."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Names of the prompt's blocks; empty where the trace has none."""


def read_trace(path: Path, limit: int | None = None) -> list[Arrival]:
    """The first `limit` arrivals. Raises ValueError, with the line's number, for one that cannot be read."""
    read = _mooncake if path.suffix == ".jsonl" else _azure
    arrivals: list[Arrival] = []
    try:
        for arrival in islice(read(path), limit):
            arrivals.append(arrival)  # noqa: PERF402  the count so far is for the message
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: arrival {len(arrivals) + 1}: {error!r}") from error
    start_s = arrivals[0].at_s if arrivals else 0.0
    return [replace(one, at_s=one.at_s - start_s) for one in arrivals]


def scaled(arrivals: list[Arrival], requests_per_s: float) -> list[Arrival]:
    """The same arrivals in the same pattern, at another mean rate."""
    factor = mean_rate(arrivals) / requests_per_s
    return [replace(one, at_s=one.at_s * factor) for one in arrivals]


def shortened(arrivals: list[Arrival], prompt_tokens: int | None, output_tokens: int | None) -> list[Arrival]:
    """The same arrivals, prompts and outputs cut to these lengths; None cuts nothing."""
    most_prompt, most_output = prompt_tokens or sys.maxsize, output_tokens or sys.maxsize
    return [
        replace(
            one,
            prompt_tokens=min(one.prompt_tokens, most_prompt),
            output_tokens=min(one.output_tokens, most_output),
            blocks=one.blocks[: -(-min(one.prompt_tokens, most_prompt) // BLOCK_TOKENS)],
        )
        for one in arrivals
    ]


def lengthened(arrivals: list[Arrival], times: float) -> list[Arrival]:
    """The same arrivals with outputs so many times as long: a stand-in for models that think before they answer."""
    return [replace(one, output_tokens=max(round(one.output_tokens * times), 1)) for one in arrivals]


def in_bursts(arrivals: list[Arrival], burst_s: float, every_s: float) -> list[Arrival]:
    """The same arrivals, in bursts with nothing between: what came within each `burst_s`, begun every `every_s`."""
    return [replace(one, at_s=one.at_s // burst_s * every_s + one.at_s % burst_s) for one in arrivals]


def mean_rate(arrivals: list[Arrival]) -> float:
    """Requests a second. Raises ValueError for fewer than two moments."""
    span_s = arrivals[-1].at_s if arrivals else 0.0
    if span_s <= 0:
        raise ValueError("a trace needs arrivals at two moments at least")
    return len(arrivals) / span_s


def _azure(path: Path) -> Iterator[Arrival]:
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            # Seven digits of a second; the standard library reads six.
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield Arrival(at_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(path: Path) -> Iterator[Arrival]:
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            blocks = tuple(row["hash_ids"])
            yield Arrival(row["timestamp"] / 1e3, int(row["input_length"]), max(int(row["output_length"]), 1), blocks)
