"""The highest rate of requests at which Sluice keeps its bounds, per GPU: starts `sluice up` on the GPUs given, plays
loads open loop from several client processes, and bisects for each pair of bounds.

    python -m bench.goodput --devices 0,1 --prefill 1 --decode 1 --shape 1024/256 --shape 4096/256
    python -m bench.goodput --devices 0,1,2,3 --prefill 2 --decode 2 --trace azure_2023_conv.csv

Without `--model`, random weights of the Llama-3.1-8B shape. Outputs are as long as the load says. A gap between tokens
is one between events of a stream. Options after `--` go to `sluice up`, for example `-- --chunk-tokens 8192`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import httpx

from bench.goodput.bounds import P99, Bounds, highest_rate
from bench.goodput.load import of_trace, poisson
from bench.goodput.model import CONFIG, write_model
from bench.goodput.stages import means_ms, totals
from bench.replay.client import Asked
from bench.replay.players import played
from bench.serving import serving
from bench.simulate.figures import Figures, Slo
from bench.simulate.measure import summary
from bench.simulate.trace import Arrival

BOUNDS = ("ttft=1,itl=0.02", "ttft=1,tpot=0.025")
_WARM_S = 5.0
Load = Callable[[float, float], list[Arrival]]
"""(requests a second, seconds) -> arrivals."""


class Bench:
    """One Sluice under measurement; remembers what it measured."""

    def __init__(self, asked: Asked, load: Load, seconds: float, processes: int, name: str) -> None:
        self._asked, self._load, self._seconds, self._processes, self._name = asked, load, seconds, processes, name
        self.runs: dict[float, tuple[Figures, dict[str, float]]] = {}

    def warm(self, rate: float) -> None:
        """Let everything run once before it counts."""
        played(self._load(rate, _WARM_S), self._asked, 120.0, self._processes)

    def measure(self, rate: float) -> Figures:
        """Play the load at a rate, or tell what came of it before."""
        if rate not in self.runs:
            before = totals(self._asked.url)
            stories, gaps = played(self._load(rate, self._seconds), self._asked, 120.0, self._processes)
            figures = summary(stories, gaps, Slo(1.0, 0.025))
            self.runs[rate] = (figures, means_ms(before, totals(self._asked.url)))
            _say(f"{self._name} {_row(rate, *self.runs[rate])}")
        return self.runs[rate][0]


def _row(rate: float, figures: Figures, stages: dict[str, float]) -> str:
    spent = ", ".join(f"{stage} {value:.0f}" for stage, value in stages.items())
    return (
        f"{rate:6.2f} req/s | TTFT {1e3 * figures.ttft_s[0]:.0f} / {1e3 * figures.ttft_s[P99]:.0f} | "
        f"TPOT {1e3 * figures.tpot_s[0]:.1f} / {1e3 * figures.tpot_s[P99]:.1f} | "
        f"ITL {1e3 * figures.itl_s[0]:.1f} / {1e3 * figures.itl_s[P99]:.1f} ms (p50 / p99) | "
        f"{figures.output_tokens_per_s:.0f} tok/s | refused {figures.refused_share:.1%} | mean ms: {spent}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _loads(asked: argparse.Namespace) -> Iterator[tuple[str, Load]]:
    for shape in asked.shape:
        prompt, output = (int(part) for part in shape.split("/"))
        yield shape, partial(poisson, prompt, output)
    for trace in asked.trace:
        yield trace.name, partial(of_trace, trace, asked.max_context_tokens)


def _options(asked: argparse.Namespace, model: Path) -> list[str]:
    random = [] if asked.model else ["--load-format", "random"]
    devices = ["--devices", asked.devices] if asked.devices else []
    workers = ["--prefill", str(asked.prefill), "--decode", str(asked.decode), "--tp", str(asked.tp)]
    return ["--model", str(model), *random, *devices, *workers, "--log-level", "warning", *asked.options]


def measured(asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One result for each load and pair of bounds, as they are known."""
    num_gpus = (asked.prefill + asked.decode) * asked.tp
    with contextlib.ExitStack() as stack:
        log: TextIO | None = stack.enter_context(asked.log.open("w")) if asked.log else None
        model = asked.model or write_model(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "llama-8b-shape")
        pairs = asked.prefill * asked.decode
        url = stack.enter_context(serving(_options(asked, model), num_pairs=pairs, ready_s=asked.ready_s, log=log))
        name = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
        client = Asked(url, name, asked.vocab_size, None)
        for load_name, load in _loads(asked):
            bench = Bench(client, load, asked.seconds, asked.processes, load_name)
            bench.warm(asked.low)
            for text in asked.bounds:
                bounds = Bounds.parse(text)
                rate = highest_rate(bench.measure, bounds, asked.low, asked.high, asked.runs)
                at_rate = bench.runs.get(rate)
                yield {
                    "load": load_name,
                    "bounds": str(bounds),
                    "requests_per_s": rate,
                    "requests_per_s_per_gpu": rate / num_gpus,
                    "figures": asdict(at_rate[0]) if at_rate else None,
                    "stages_ms": at_rate[1] if at_rate else None,
                }


def main() -> None:
    """Measure, print a table, write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model folder; none takes random weights of Llama-3.1-8B's shape")
    parser.add_argument("--vocab-size", type=int, default=CONFIG["vocab_size"], help="prompt ids are drawn below it")
    parser.add_argument("--devices", help="GPUs, as `sluice up` takes them; none on a CPU")
    parser.add_argument("--prefill", type=int, default=1, help="prefill workers")
    parser.add_argument("--decode", type=int, default=1, help="decode workers")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of each worker")
    parser.add_argument("--shape", action="append", default=[], metavar="PROMPT/OUTPUT", help="Poisson load, in tokens")
    parser.add_argument("--trace", action="append", default=[], type=Path, help="trace to play in place of a shape")
    parser.add_argument("--max-context-tokens", type=int, default=32_000, help="leave out a trace's longer requests")
    parser.add_argument("--bounds", action="append", default=[], help=f"pairs to search for; default {BOUNDS}")
    parser.add_argument("--low", type=float, default=2.0, help="lowest rate, requests a second")
    parser.add_argument("--high", type=float, default=60.0, help="highest rate")
    parser.add_argument("--runs", type=int, default=6, help="runs for each pair of bounds at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of one run's arrivals")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) // 4, 1), help="client processes")
    parser.add_argument("--ready-s", type=float, default=300.0, help="longest start of Sluice")
    parser.add_argument("--log", type=Path, help="file for Sluice's own output")
    parser.add_argument("--json", type=Path, help="write results to this file as well")
    parser.add_argument("options", nargs="*", help="for `sluice up`, after --")
    asked = parser.parse_args()
    asked.bounds = asked.bounds or list(BOUNDS)
    if not asked.shape and not asked.trace:
        asked.shape = ["1024/256"]
    results = []
    for result in measured(asked):
        results.append(result)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=2))
    print(f"{'load':<24}{'bounds':<40}{'req/s':>8}{'req/s per GPU':>15}")
    for one in results:
        print(
            f"{one['load']:<24}{one['bounds']:<40}{one['requests_per_s']:>8.2f}{one['requests_per_s_per_gpu']:>15.2f}"
        )


if __name__ == "__main__":
    main()
