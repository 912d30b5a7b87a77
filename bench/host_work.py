"""What the host does a decode step or around a prefill, without a card: the loop, the packing and the results.

    python -m bench.host_work [--rows 256] [--sampling greedy | top-p] [--profile]
    python -m bench.host_work --prefill

The launches are left out (`bench.idle_engine`). As in `bench.engine`, which measures the same with the launches, all
rows decode 130 tokens behind cached prompts of 1024 and end together. Printed are microseconds a turn, median over
rounds: of the mean turn, which has its share of rows that grow and end, and of the median turn, in which nothing but
tokens happens. Of prefills `bench.host_prefill` tells what lies before the first launch and behind the ids.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench import host_prefill
from bench.idle_engine import GREEDY, admits, idle_engine
from services.common import ipc
from services.common.request import SamplingParams
from services.engine.loop import Engine
from tests.engine.tiny import make_model, prompt_of

PROMPT, TOKENS = 1024, 130
LONGEST = 8320
ROUNDS = 15
VOCABULARY = 32_000
"""Of the prefills: prompts that share nothing."""
SAMPLING = {"greedy": GREEDY, "top-p": SamplingParams(temperature=0.8, top_p=0.9, seed=3)}


def turns_us(engine: Engine, prompts: list[bytes], sampling: SamplingParams, first_job: int) -> list[float]:
    """Admit the prompts and turn until all have ended; return microseconds of each turn but the first."""
    engine.turn(admits(prompts, TOKENS, sampling, first_job))
    took = []
    while engine.has_work:
        began = time.perf_counter()
        ipc.encode(engine.turn([]))
        took.append(1e6 * (time.perf_counter() - began))
    return took


def profiled(run: Callable[[], object]) -> None:
    """Print where the time of `run` goes."""
    profile = cProfile.Profile()
    profile.runcall(run)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def measure_prefill(rows: int) -> None:
    """Print what lies around prefills."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("llama", Path(folder), max_position_embeddings=LONGEST, vocab_size=VOCABULARY)
        engine = idle_engine(model, max_running_requests=rows, num_kv_tokens=800_000, max_context_tokens=LONGEST,
                             chunk_tokens=8192)  # fmt: skip
    gc.freeze()
    gc.disable()
    random = np.random.default_rng(0)

    def prompts_of(count: int, length: int) -> list[bytes]:
        return [random.integers(0, VOCABULARY, length, np.int32).tobytes() for _ in range(count)]

    host_prefill.report(engine, prompts_of, ROUNDS)


def measure_decode(rows: int, name: str, *, profile: bool) -> None:
    """Print what a turn takes, or where its time goes."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("llama", Path(folder), max_position_embeddings=2 * PROMPT)
        engine = idle_engine(model, max_running_requests=rows, num_kv_tokens=2 * rows * (PROMPT + TOKENS),
                             max_context_tokens=2 * PROMPT, chunk_tokens=8192)  # fmt: skip
    gc.disable()
    sampling = SAMPLING[name]
    prompts = [ipc.pack_ids(list(prompt_of(PROMPT, seed=i))) for i in range(rows)]
    turns_us(engine, prompts, sampling, 1)
    if profile:
        profiled(lambda: turns_us(engine, prompts, sampling, rows + 1))
        return
    rounds = [turns_us(engine, prompts, sampling, 1 + (i + 1) * rows) for i in range(5)]
    for what, of in (("mean", statistics.mean), ("median", statistics.median)):
        each = [of(took) for took in rounds]
        print(f"B={rows} {name}: the {what} turn takes {statistics.median(each):.0f} us "
              f"({min(each):.0f} - {max(each):.0f})")  # fmt: skip


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--sampling", choices=SAMPLING, default="greedy")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--prefill", action="store_true")
    options = parser.parse_args()
    if options.prefill:
        measure_prefill(options.rows)
    else:
        measure_decode(options.rows, options.sampling, profile=options.profile)


if __name__ == "__main__":
    main()
