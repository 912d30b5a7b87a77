"""Decode steps with pages arriving beside steps without: what KV traffic costs the streams of a decode worker.

    python -m bench.transfer_decode --device cuda:0 [--peer-device cuda:0] [--rows 64] [--gb-per-s 6 25 50 0]

This process decodes `rows` sequences of random weights (the Llama-3.1-8B shape on CUDA) by the engine's own loop. A
second process pushes pages to it at the asked rate (0: as fast as they go), each of which is scattered into reserved
slots between steps. It computes nothing, since without MPS two processes' kernels take turns on one card. A step is
the time between the ends of two turns of the loop. Every rate stands beside a run without traffic just before it.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

from bench.random_engine import RandomEngine, admit, key_of
from bench.transfer_traffic import Target, Traffic, send_traffic
from services.common import ipc

WARM_STEPS = 8
ATTEMPT_TOKENS, NUM_ATTEMPTS = 2048, 4


class Steps(NamedTuple):
    """Milliseconds of decode steps."""

    median: float
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: list[float]) -> Steps:
        """From one time a step."""
        ordered = sorted(1e3 * each for each in seconds)
        return cls(statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1])

    def __str__(self) -> str:
        """Three columns."""
        return f"{self.median:9.3f} {self.p99:9.3f} {self.worst:9.3f}"


class Decoding:
    """The decode engine and its streams."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.engine = RandomEngine(
            options.device, role="decode", worker_id="decode", max_running_requests=options.rows, chunk_tokens=8192,
            max_context_tokens=max(options.context + options.steps, ATTEMPT_TOKENS) + 128,
            num_kv_tokens=options.rows * (options.context + options.steps + 160) + NUM_ATTEMPTS * ATTEMPT_TOKENS,
            transfer={"page_bytes": int(options.page_mib * (1 << 20)), "num_pages": options.pages},
        )  # fmt: skip
        self._prompts = [self.engine.prompt(options.context) for _ in range(options.rows)]
        self._next_job = 1
        self._reserve()

    def _reserve(self) -> None:
        """Slots for the traffic: it writes them again and again, and nobody ever joins."""
        commands: list[ipc.Command] = []
        for _ in range(NUM_ATTEMPTS):
            ids = ipc.pack_ids(self.engine.prompt(ATTEMPT_TOKENS))
            commands.append(ipc.Reserve(self._next_job, key_of(self._next_job), ids, 0.0))
            self._next_job += 1
        events = self.engine.turn(*commands)
        if sum(isinstance(event, ipc.Reserved) for event in events) < NUM_ATTEMPTS:
            raise SystemExit(f"the pool has no room for the traffic: {events}")

    def target(self) -> Target:
        """Where the other process sends."""
        transfer = self.engine.transfer
        return Target(
            transfer.ports[0], self.engine.group, transfer.heads, transfer.pages.page_bytes, self.engine.token_bytes,
            tuple(range(1, NUM_ATTEMPTS + 1)), ATTEMPT_TOKENS,
        )  # fmt: skip

    def steps(self) -> Steps:
        """Decode all rows from their prompts on; the first run computes those, later ones find them cached."""
        count = self._options.steps
        commands = [admit(self._next_job + i, prompt, count + 1) for i, prompt in enumerate(self._prompts)]
        self._next_job += len(commands)
        self.engine.turn(*commands)
        while self.engine.engine.state.prefilling:
            self.engine.turn()
        ends = []
        for _ in range(count):
            self.engine.turn()
            ends.append(time.perf_counter())
        while self.engine.engine.state.rows.remaining.any():
            self.engine.turn()
        for _ in range(WARM_STEPS):  # the last results
            self.engine.turn()
        ends = ends[WARM_STEPS:-WARM_STEPS]
        return Steps.of([end - start for start, end in itertools.pairwise(ends)])


def measure(decoding: Decoding, pipe: Connection, gb_per_s: float) -> str:
    """A line of the table."""
    alone = decoding.steps()
    pipe.send(Traffic(gb_per_s))
    busy = decoding.steps()
    pipe.send(None)
    while not pipe.poll():  # what is on its way still has to be scattered
        decoding.engine.turn()
    achieved: float = pipe.recv()
    asked = f"{gb_per_s:g}" if gb_per_s else "all"
    return f"{asked:>6} {achieved:9.2f} {alone} {busy} {busy.p99 / alone.p99:8.2f}"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="of the decode engine: cpu, or e.g. cuda:0")
    parser.add_argument("--peer-device", help="where the pushing process has its pages; default: the same")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--gb-per-s", type=float, nargs="+", default=[6, 25, 50, 0])
    parser.add_argument("--page-mib", type=float, default=64)
    parser.add_argument("--pages", type=int, default=16, help="transfer pages of each process")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    decoding = Decoding(options)
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    child = context.Process(
        target=send_traffic, daemon=True,
        args=(far_end, options.peer_device or options.device, options.pages, decoding.target()),
    )  # fmt: skip
    child.start()
    while not pipe.poll(0.01):
        decoding.engine.turn()
        if not child.is_alive():
            raise SystemExit("the pushing process has ended")
    print(f"lane {pipe.recv()}; B={options.rows}, context {options.context}, pages of {options.page_mib:g} MiB")
    decoding.steps()
    print(f"{'':16} {'alone, ms':^29} {'with traffic, ms':^29}")
    columns = ("median", "p99", "worst") * 2
    print(f"{'asked':>6} {'GB/s':>9} " + " ".join(f"{name:>9}" for name in columns) + f" {'p99':>8}")
    for gb_per_s in options.gb_per_s:
        print(measure(decoding, pipe, gb_per_s), flush=True)
    child.terminate()
    decoding.engine.transfer.close()


if __name__ == "__main__":
    main()
