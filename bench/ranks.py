"""Tensor parallel ranks beside one: decode steps, prefill and one sum over ranks, of the Llama-3.1-8B shape.

    python -m bench.ranks [--ranks 1 2] [--through peer nccl] [--rows 1 16 64] [--rounds 3] [--json FILE]

Needs as many cards as the largest number of ranks. Each number of ranks runs in processes of its own, through the
engine's loop as in `bench.engine`; a split step's ratio to one rank's stands last. `--through` says how short steps add
up: over peer memory, or by NCCL in the same graphs. What has been measured when `--timeout` seconds have passed counts
(with an empty Triton cache the start alone takes half a minute).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.engine import Bench, prompts_of
from kernels.skinny_gemm import NormOut
from services.common import ipc
from services.engine.backends.cuda import rank_sums
from services.engine.backends.cuda.peer_memory import PeerAccessError
from services.engine.backends.cuda.rank_sums import RankSums, open_rank_sums
from services.engine.lifeline import Lifeline
from services.engine.ranks import Ranks
from services.engine.serving import follow

HIDDEN, CONTEXT, PREFILL = 4096, 1024, (1, 8192)
SUMS = 64
"""In one graph: as many as a step has."""
log = logging.getLogger(__name__)

Figure = tuple[str, float | tuple[float, float, float]]
"""What was measured: a value, or a median with its lowest and highest."""


def run_rank(options: argparse.Namespace) -> None:
    """One rank's process; rank 0 measures and prints each figure, as soon as it has it, as a line of JSON."""
    if options.through[0] == "nccl":
        setattr(rank_sums, "open_peer_memory", _switched_off)  # noqa: B010 - not its own to set
    bench = Bench(
        options.rounds, num_ranks=options.count, rank=options.rank, rendezvous=options.folder,
        max_running_requests=max(options.rows),
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    gc.disable()  # as the engine process does
    if options.rank == 0:
        tell(measure(bench, options))
        bench.engine.turn([ipc.Shutdown()])
    else:
        turns = bench.model.ranks.agreement.socket
        assert turns is not None
        follow(bench.engine, turns, [], Lifeline(None))
    ranks = bench.model.ranks
    del bench
    gc.unfreeze()
    gc.collect()  # NCCL does not end before the graphs that use it
    figures = sums(ranks, options)
    if options.rank == 0:
        tell(figures)
    else:
        for _ in figures:  # it takes its part in each
            pass
    gc.collect()
    ranks.close()


def tell(figures: Iterator[Figure]) -> None:
    """Print them for the process that started the ranks."""
    for name, value in figures:
        print(json.dumps({name: value}), flush=True)


def _switched_off(*_: object) -> None:
    raise PeerAccessError("--through nccl")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Milliseconds by name, each with its lowest and highest."""
    yield "from start to ready, s", bench.ready_s
    for rows in options.rows:
        prompts = prompts_of(rows, CONTEXT)
        bench.run(prompts, 2)

        def step_ms(prompts: list[list[int]] = prompts) -> float:
            return 1e3 * (bench.run(prompts, 130) - bench.run(prompts, 2)) / 128

        yield f"decode B={rows}, context {CONTEXT}, ms a step", bench.spread(step_ms)
    count, length = PREFILL
    bench.run(prompts_of(count, length), 1)
    yield f"prefill {count} x {length}, ms", bench.spread(lambda: 1e3 * bench.run(prompts_of(count, length), 1))


def sums(ranks: Ranks, options: argparse.Namespace) -> Iterator[Figure]:
    """Microseconds of one sum over ranks with residual and norm behind it, in a graph of `SUMS`; all ranks call it."""
    device = torch.device("cuda", ranks.rank)
    for rows in options.rows:
        over = open_rank_sums(ranks, HIDDEN, rows, torch.bfloat16, device)
        if over is not None:
            yield f"a sum of {rows} x {HIDDEN}, us", _sum_us(over, rows, device)


def _sum_us(over: RankSums, rows: int, device: torch.device) -> float:
    residual = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device=device)
    norm = NormOut(torch.ones_like(residual[0]), torch.empty_like(residual), torch.empty(256, rows, device=device))

    def launches() -> None:
        for _ in range(SUMS):
            over.add(over.partial(rows), residual, norm, pdl=True)

    launches()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: list[float] = []
    for _ in range(20):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / SUMS)
    return sorted(times)[len(times) // 2]


def start(count: int, through: str, options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Run all ranks of one engine; what rank 0 printed, and whether all came to their end."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.ranks", "--through", through, "--rounds", str(options.rounds),
                   "--rows", *map(str, options.rows), "--count", str(count), "--folder", folder]  # fmt: skip
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE if rank == 0 else None, text=True)
            for rank in range(count)
        ]
        late = threading.Timer(options.timeout, end, [ranks])
        late.start()
        try:
            assert ranks[0].stdout is not None
            for line in ranks[0].stdout:
                found |= json.loads(line)
            codes = [rank.wait(60) for rank in ranks]
        finally:
            late.cancel()
            end(ranks)
    if any(codes):
        log.error("%d ranks through %s, not measured to the end: exit statuses %s", count, through, codes)
    return found, not any(codes)


def end(ranks: list[subprocess.Popen[str]]) -> None:
    """Kill those that still run."""
    for rank in ranks:
        rank.kill()


def main() -> None:
    """Measure every number of ranks, print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--through", nargs="*", choices=["peer", "nccl"], default=["peer", "nccl"])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=240.0)
    parser.add_argument("--json", type=Path)
    for name, kind in (("--rank", int), ("--count", int), ("--folder", str)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    sys.setswitchinterval(1e-4)
    if options.rank is not None:
        run_rank(options)
        return
    results, complete = {}, True
    for count in options.ranks:
        for through in options.through if count > 1 else ["peer"]:
            name = f"{count} ranks, {through}" if count > 1 else "1 rank"
            results[name], to_the_end = start(count, through, options)
            complete &= to_the_end
            report(results)
            if options.json:
                options.json.write_text(json.dumps(results))
    sys.exit(not complete)


def report(results: dict[str, dict[str, Any]]) -> None:
    """Print what there is so far: each figure's median, and its ratio to one rank's."""
    alone = results.get("1 rank", {})
    for name, found in results.items():
        print(f"{name} ({torch.cuda.get_device_name()})")
        for what, value in found.items():
            median, *spread = value if isinstance(value, list) else [value]
            base = alone.get(what)
            ratio = f"{median / base[0]:8.3f} of one rank's" if isinstance(base, list) and found is not alone else ""
            print(f"  {what:42} {median:10.3f}  {' '.join(f'{each:.3f}' for each in spread):20} {ratio}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
