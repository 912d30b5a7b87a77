"""Time that the KV transfer still takes when a prompt's compute has ended, by prompt length.

    python -m bench.transfer_exposed --device cuda:0 [--peer-device cuda:1] [--lengths 512 4096] [--tail 128 0]

This process computes one prompt after another (random weights, the Llama-3.1-8B shape on CUDA) by the engine's own loop
and pushes their KV; a second process receives the pages, scatters them into a pool and computes nothing. `--tail`: at
most so many tokens are left for the last chunk (`push_tail_tokens`), 0 for prompts that are not split. `exposed` is the
engine's own figure: from the prompt's end of compute to the last page's answer. Medians, with lowest and highest.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import select
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.random_engine import RandomEngine, admit, key_of
from bench.transfer_arrivals import Source, receive
from services.common import ipc

NOT_SPLIT = 1 << 30


class Sample(NamedTuple):
    """Of one prompt, in seconds."""

    prefill: float
    """From the command to the first token."""
    exposed: float


class Prefilling:
    """The prefill engine and the process that receives its KV."""

    def __init__(self, options: argparse.Namespace) -> None:
        longest = max(options.lengths)
        self.engine = RandomEngine(
            options.device, role="prefill", worker_id="prefill", max_running_requests=4,
            chunk_tokens=options.chunk_tokens, max_context_tokens=longest + 64, num_kv_tokens=2 * longest + 128,
            prefix_cache=False,
            transfer={"page_bytes": int(options.page_mib * (1 << 20)), "num_pages": options.pages},
        )  # fmt: skip
        self._next_job = 0
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        transfer, pool = self.engine.transfer, self.engine.engine._runner.backend.pool
        source = Source(
            self.engine.group, transfer.heads, transfer.pages.page_bytes, options.pages,
            (pool.shape[0], longest, *pool.shape[2:]), pool.dtype,
        )  # fmt: skip
        child = context.Process(
            target=receive, args=(far_end, options.peer_device or options.device, source), daemon=True
        )
        child.start()
        self._connect(self._pipe.recv())

    def _connect(self, port: int) -> None:
        command = ipc.ConnectPeer("decode", "127.0.0.1", (port,), "d", self.engine.group)
        for events in self._turns(command):
            lost = [event for event in events if isinstance(event, ipc.PeerLost)]
            if lost:
                raise SystemExit(f"the pair was not proven: {lost}")
            for event in events:
                if isinstance(event, ipc.PeerProven):
                    print(f"lane {event.lane}, its proof moved {event.gb_per_s:.1f} GB/s")
                    return

    def prompt(self, length: int, tail: int) -> Sample:
        """Compute and push one."""
        self.engine.engine._builder._push_tail_tokens = tail or NOT_SPLIT
        self._next_job += 1
        key = key_of(self._next_job)
        self._pipe.send(key)
        self._pipe.recv()  # the receiver expects it
        command = admit(self._next_job, self.engine.prompt(length), 2, hand_over=True)
        place = ipc.Place(self._next_job, "decode", key, 0)
        began = time.perf_counter()
        prefill = exposed = None
        for events in self._turns(command, place):
            for event in events:
                if isinstance(event, ipc.StepDone) and event.outputs:
                    prefill = time.perf_counter() - began
                elif isinstance(event, ipc.PushDone):
                    exposed = event.exposed_s
                elif isinstance(event, ipc.TransferFailed):
                    raise SystemExit(f"the push failed: {event}")
            if prefill is not None and exposed is not None:
                break
        assert prefill is not None
        assert exposed is not None
        for events in self._turns(ipc.Release(self._next_job)):
            if any(isinstance(event, ipc.Ended) for event in events):
                break
        return Sample(prefill, exposed)

    def close(self) -> None:
        """End the other process too."""
        self._pipe.send(None)
        self.engine.transfer.close()

    def _turns(self, *commands: ipc.Command) -> Iterator[list[ipc.Event]]:
        """Turns as the engine's process makes them: it sleeps when there is nothing to do but to wait for peers."""
        yield self.engine.turn(*commands)
        while True:
            if not self.engine.engine.has_work and not select.select([self.engine.transfer.wake_fd], [], [], 10)[0]:
                raise SystemExit("nothing happened for 10 s")
            yield self.engine.turn()


def spread(values: list[float]) -> str:
    """Milliseconds."""
    low, median, high = (1e3 * each for each in (min(values), statistics.median(values), max(values)))
    return f"{median:9.2f} ({low:.2f} - {high:.2f})"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="of the prefill engine: cpu, or e.g. cuda:0")
    parser.add_argument("--peer-device", help="where the receiving process has its pages; default: the same")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--tail", type=int, nargs="+", default=[128, 0])
    parser.add_argument("--chunk-tokens", type=int, default=8192)
    parser.add_argument("--page-mib", type=float, default=64)
    parser.add_argument("--pages", type=int, default=24, help="transfer pages of each process")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    prefilling = Prefilling(options)
    print(f"{'tokens':>7} {'tail':>5} {'prefill ms':>28} {'exposed ms':>28} {'share':>6}")
    for length in options.lengths:
        for tail in options.tail:
            prefilling.prompt(length, tail)
            samples = [prefilling.prompt(length, tail) for _ in range(options.rounds)]
            prefill, exposed = ([sample[i] for sample in samples] for i in (0, 1))
            share = statistics.median(exposed) / statistics.median(prefill)
            print(f"{length:7} {tail:5} {spread(prefill):>28} {spread(exposed):>28} {share:6.1%}", flush=True)
    prefilling.close()


if __name__ == "__main__":
    main()
