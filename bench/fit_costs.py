"""Fit the simulator's cost model to a running server: timed requests in, a file for `bench.simulate --costs` out.

    python -m bench.fit_costs --url http://127.0.0.1:8000 --model smollm2 --out costs.json

What is timed is what a client sees, so that HTTP, processes and the KV's way are in the figures: the first token of
prompts of several lengths, one at a time and beside streams that decode; and the steps of several batches, from when
all their streams run until the first of them ends. An event may carry several tokens: between the first event, which is
the first token, and the last, each counts for its share of the tokens that the server says it made. A stream that fails
or is shorter than asked for ends the fit. Coefficients are the least squares of relative errors, none below zero. Ask a
server that has nothing else to do, with one worker of each role; what else keeps its machine busy belongs to its speed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import numpy.typing as npt

from bench.replay.client import Asked, Play, play, started
from bench.simulate.cost import Costs, num_steps
from bench.simulate.story import Story
from bench.simulate.trace import Arrival

Floats = npt.NDArray[np.float64]


def least_squares(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> Floats:
    """Coefficients >= 0 of the terms [n, k] that come nearest to the times [n], by relative error."""
    measured = np.asarray(seconds, dtype=np.float64)
    weighted = np.asarray(terms, dtype=np.float64) / measured[:, None]
    kept = np.ones(weighted.shape[1], dtype=np.bool_)
    while True:
        found = np.zeros(weighted.shape[1])
        found[kept] = np.linalg.lstsq(weighted[:, kept], np.ones(len(measured)), rcond=None)[0]
        if (found >= 0).all():
            return found
        kept &= found > 0


_LONG = 2000
"""Tokens of streams that decode beside what is timed; they are cut off."""


class Prober:
    """Sends requests of new random prompts and times what comes."""

    def __init__(self, client: httpx.AsyncClient, asked: Asked) -> None:
        self._client = client
        self._asked = asked
        self._clock = started()
        self._numbers = itertools.count(1_000_000)

    async def _stream(
        self, prompt_tokens: int, output_tokens: int, came: Callable[[int], None] = lambda _: None
    ) -> list[float]:
        """When each event with output came; the first element is the start. came: told how many have, with each.
        Raises RuntimeError where the stream failed."""
        number, times = next(self._numbers), [self._clock()]
        story = Story(number, Arrival(times[0], prompt_tokens, output_tokens), output_tokens)

        def note(at_s: float) -> None:
            times.append(at_s)
            came(len(times) - 1)

        await play(self._client, story, self._asked, Play(self._clock, note))
        if story.refused:
            asked = f"a prompt of {prompt_tokens} tokens, {output_tokens} to come"
            raise RuntimeError(f"the server refused {asked}: {story.refused}")
        if len(times) < min(output_tokens, 3) + 1:
            raise RuntimeError(f"{output_tokens} tokens came in {len(times) - 1} events: no step can be told from them")
        return times

    async def first_token_s(self, prompt_tokens: int, rounds: int, output_tokens: int = 1) -> float:
        """Median time to the first token, alone."""
        found = [await self._stream(prompt_tokens, output_tokens) for _ in range(rounds)]
        return statistics.median(times[1] - times[0] for times in found)

    async def beside_decode(self, lengths: Sequence[int], rounds: int, rows: int) -> float:
        """How much longer the first token takes while so many streams decode, as a share: the median over lengths.
        Raises RuntimeError where a stream failed, or ended before the last prompt was timed."""
        alone = [await self.first_token_s(n, rounds) for n in lengths]
        streams, decoding = [], []
        for _ in range(rows):
            decodes = asyncio.Event()
            stream = self._stream(lengths[0], _LONG, partial(_note_decoding, decodes))
            streams.append(asyncio.create_task(stream))
            decoding.append(asyncio.create_task(decodes.wait()))
        try:
            await _all_decode(streams, decoding)
            beside = [await self.first_token_s(n, rounds) for n in lengths]
            _check_running(streams)
        finally:
            for task in (*streams, *decoding):
                task.cancel()
            await asyncio.gather(*streams, *decoding, return_exceptions=True)
        return max(statistics.median(slow / fast - 1 for slow, fast in zip(beside, alone, strict=True)), 0.0)

    async def step_s(self, rows: int, context: int, output_tokens: int) -> tuple[float, float, float]:
        """Of so many streams at once: seconds a token while all run, their mean context then, and the median of what
        the first gap of a stream has beyond that, which is the hand-over."""
        streams = await asyncio.gather(*(self._stream(context, output_tokens) for _ in range(rows)))
        since, until = max(times[2] for times in streams), min(times[-1] for times in streams)
        inside = [[at for at in times[1:] if since <= at <= until] for times in streams]
        shares = [(output_tokens - 1) / (len(times) - 2) for times in streams]  # tokens of an event after the first
        steps = [
            (times[-1] - times[0]) / (len(times) - 1) / share
            for times, share in zip(inside, shares, strict=True)
            if len(times) > 1
        ]
        if not steps:
            raise RuntimeError(f"{rows} streams of {output_tokens} tokens never ran at once: ask for longer outputs")
        middle = (since + until) / 2
        produced = statistics.mean(
            1 + share * sum(at < middle for at in times[2:]) for times, share in zip(streams, shares, strict=True)
        )
        step_s = statistics.median(steps)
        return step_s, context + produced, statistics.median(times[2] - times[1] for times in streams) - step_s


def _note_decoding(decodes: asyncio.Event, num_events: int) -> None:
    """The first token is the prefill worker's: only with the second is a stream known to decode."""
    if num_events > 1:
        decodes.set()


async def _all_decode(streams: list[asyncio.Task[list[float]]], decoding: list[asyncio.Task[Literal[True]]]) -> None:
    """Wait for the last of them, or for the first stream that ends, which none may. Raises RuntimeError then."""
    waiting: set[asyncio.Task[Any]] = set(decoding)
    while waiting:
        _, pending = await asyncio.wait({*streams, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        _check_running(streams)
        waiting &= pending


def _check_running(streams: list[asyncio.Task[list[float]]]) -> None:
    for stream in streams:
        if stream.done():
            stream.result()  # raises its own error where it failed
            raise RuntimeError(f"streams of {_LONG} tokens ended while prompts were timed beside them")


async def measure(prober: Prober, asked: argparse.Namespace) -> Costs:
    """Probe, fit, print what was measured beside the fit. See `bench.simulate.cost` for the formula."""
    await prober.first_token_s(asked.prompts[-1], 1)  # the first one warms up
    prompts = [(n, await prober.first_token_s(n, asked.rounds)) for n in asked.prompts]
    batches = list(itertools.product(asked.rows, asked.contexts))
    steps = [(rows, *await prober.step_s(rows, context, asked.output_tokens)) for rows, context in batches]
    beside = await prober.beside_decode(asked.prompts[-3:], asked.rounds, asked.rows[len(asked.rows) // 2])
    prefill_s, token_s, pair_s = least_squares(
        [(num_steps(n), n, n * n / 2) for n, _ in prompts], [seconds for _, seconds in prompts]
    )
    step_s, row_s, context_s = least_squares(
        [(1, rows, rows * context) for rows, _, context, _ in steps], [seconds for _, seconds, *_ in steps]
    )
    costs = Costs(
        source=f"python -m bench.fit_costs, {asked.note}",
        step_s=float(step_s),
        row_s=float(row_s),
        context_token_s=float(context_s),
        prefill_token_s=float(token_s),
        prefill_pair_s=float(pair_s),
        kv_token_bytes=asked.kv_token_bytes,
        transfer_gb_per_s=asked.transfer_gb_per_s,
        transfer_latency_s=max(statistics.median(late_s for rows, *_, late_s in steps if rows == asked.rows[0]), 0.0),
        pool_slots=asked.pool,
        prefill_step_s=float(prefill_s),
        beside_decode=float(beside),
    )
    for n, seconds in prompts:
        print(f"first token of {n:>6} tokens      {1e3 * seconds:>9.1f} ms   fit {1e3 * costs.prompt_s(n):>9.1f}")
    for rows, seconds, context, _ in steps:
        fitted = costs.decode_s(rows, round(rows * context))
        print(f"step of {rows:>4} x {context:>6.0f} tokens     {1e3 * seconds:>9.1f} ms   fit {1e3 * fitted:>9.1f}")
    print(f"hand-over {1e3 * costs.transfer_latency_s:.1f} ms; prompts take {beside:.0%} longer beside streams")
    return costs


async def run(asked: argparse.Namespace) -> Costs:
    """Against the server asked for."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=300.0, limits=limits) as client:
        return await measure(Prober(client, Asked(asked.url.rstrip("/"), asked.model, asked.vocab_size, None)), asked)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `run` reads."""
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--prompts", type=int, nargs="+", default=[32, 64, 128, 256, 512], help="lengths, tokens")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8], help="streams at once")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 256], help="their prompts, tokens")
    parser.add_argument("--output-tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="prompts of each length")
    parser.add_argument("--pool", type=int, required=True, help="KV slots of a worker")
    parser.add_argument("--kv-token-bytes", type=int, default=1, help="KV of one token")
    parser.add_argument("--transfer-gb-per-s", type=float, default=50.0)
    parser.add_argument("--note", default="", help="what was measured, for the file")


def main() -> None:
    """Measure, fit, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.out.write_text(json.dumps(asdict(asyncio.run(run(asked))), indent=2) + "\n")


if __name__ == "__main__":
    main()
