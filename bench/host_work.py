"""What the host does a decode step, without a card: the loop, the packing and the results, with no kernel launched.

    python -m bench.host_work [--rows 256] [--sampling greedy | top-p] [--profile]

The cuda runner packs every array that it would send; the launches themselves are left out. As in `bench.engine`, which
measures the same with the launches, all rows decode 130 tokens behind cached prompts of 1024 and end together. Printed
are microseconds a turn, median over rounds: of the mean turn, which has its share of rows that grow and end, and of the
median turn, in which nothing but tokens happens.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

os.environ["TRITON_INTERPRET"] = "1"  # without a card nothing could be launched at all

from services.common import ipc
from services.common.request import SamplingParams
from services.engine import load
from services.engine.backends.cuda import decode_graphs, prefill_graphs, runner, slot_table
from services.engine.loop import Engine
from tests.engine.driver import engine_config
from tests.engine.tiny import EOS, VOCAB, make_model, prompt_of

PROMPT, TOKENS = 1024, 130
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "top-p": SamplingParams(temperature=0.8, top_p=0.9, seed=3),
}


def nothing(*_args: object, **_named: object) -> None:
    """Take the place of a launch."""


def idle_engine(folder: Path, rows: int) -> Engine:
    """Return an engine on the cuda runner whose steps launch nothing: sampled ids stay 0."""
    for module, name, stand_in in (
        (decode_graphs, "captured", lambda _launches, _device, _pool: nothing),
        (prefill_graphs, "captured", lambda _launches, _device, _pool: nothing),
        (prefill_graphs.PrefillGraphs, "launch", lambda *_: (torch.zeros(8, VOCAB), None)),
        (slot_table, "scatter_ints", nothing),
        (runner, "scatter_ints", nothing),
        (runner, "publish_ids", nothing),
        (runner, "launch_draws", nothing),
        (load, "make_runner", runner.CudaRunner),
    ):
        setattr(module, name, stand_in)
    config = engine_config(folder, max_running_requests=rows, num_kv_tokens=2 * rows * (PROMPT + TOKENS),
                           max_context_tokens=2 * PROMPT, chunk_tokens=8192)  # fmt: skip
    return Engine(config, load.load_model(config))


def turns_us(engine: Engine, prompts: list[bytes], sampling: SamplingParams, first_job: int) -> list[float]:
    """Admit the prompts and turn until all have ended; return microseconds of each turn but the first."""
    commands: list[ipc.Command] = [
        ipc.Admit(
            job_id=first_job + i, key=ipc.AttemptKey(str(first_job + i), 0), arrival=float(i), sampling=sampling,
            prompt_ids=prompt, stop=ipc.EngineStop(max_new_tokens=TOKENS, stop_token_ids=(EOS,)),
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    engine.turn(commands)
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


def main() -> None:
    """Print the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--sampling", choices=SAMPLING, default="greedy")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_model("llama", Path(folder), max_position_embeddings=2 * PROMPT)
        engine = idle_engine(model, options.rows)
    gc.disable()
    sampling = SAMPLING[options.sampling]
    prompts = [ipc.pack_ids(list(prompt_of(PROMPT, seed=i))) for i in range(options.rows)]
    turns_us(engine, prompts, sampling, 1)
    if options.profile:
        profiled(lambda: turns_us(engine, prompts, sampling, options.rows + 1))
        return
    rounds = [turns_us(engine, prompts, sampling, 1 + (i + 1) * options.rows) for i in range(5)]
    for what, of in (("mean", statistics.mean), ("median", statistics.median)):
        each = [of(took) for took in rounds]
        print(f"B={options.rows} {options.sampling}: the {what} turn takes {statistics.median(each):.0f} us "
              f"({min(each):.0f} - {max(each):.0f})")  # fmt: skip


if __name__ == "__main__":
    main()
