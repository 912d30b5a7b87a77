"""What the host does a decode step, without a card: the loop, the packing and the results, with no kernel launched.

    python -m bench.host_work [--rows 256] [--sampling greedy | top-p] [--profile]

The cuda runner packs every array that it would send; the launches themselves are left out. Microseconds a turn, median
over rounds. On the card `bench.engine` measures the same with the launches.
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

PROMPT = 20
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
        (runner, "launch_draws", nothing),
        (load, "make_runner", runner.CudaRunner),
    ):
        setattr(module, name, stand_in)
    config = engine_config(folder, max_running_requests=rows, num_kv_tokens=rows * 256, max_context_tokens=256,
                           chunk_tokens=256)  # fmt: skip
    return Engine(config, load.load_model(config))


def decoding(engine: Engine, rows: int, sampling: SamplingParams, first_job: int) -> None:
    """Admit `rows` prompts and turn until all of them decode."""
    commands: list[ipc.Command] = [
        ipc.Admit(
            job_id=first_job + i, key=ipc.AttemptKey(str(first_job + i), 0), arrival=float(i), sampling=sampling,
            prompt_ids=ipc.pack_ids(list(prompt_of(PROMPT, seed=first_job + i))),
            stop=ipc.EngineStop(max_new_tokens=200, stop_token_ids=(EOS,)),
        )
        for i in range(rows)
    ]  # fmt: skip
    engine.turn(commands)
    while engine.state.prefilling:
        engine.turn([])


def turn_us(engine: Engine, turns: int) -> float:
    """Return microseconds a turn."""
    began = time.perf_counter()
    for _ in range(turns):
        engine.turn([])
    return 1e6 * (time.perf_counter() - began) / turns


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
        engine = idle_engine(make_model("llama", Path(folder)), options.rows)
    gc.disable()
    decoding(engine, options.rows, SAMPLING[options.sampling], 1)
    if options.profile:
        profiled(lambda: turn_us(engine, 100))
    else:
        rounds = [turn_us(engine, 15) for _ in range(9)]
        print(f"B={options.rows} {options.sampling}: {statistics.median(rounds):.0f} us a turn "
              f"({min(rounds):.0f} - {max(rounds):.0f})")  # fmt: skip


if __name__ == "__main__":
    main()
