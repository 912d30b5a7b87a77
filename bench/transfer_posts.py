"""What posting a receive costs, in a bare loop: by who polls UCX, by thread, and by whether the page is on its way.

    python -m bench.transfer_posts
    python -m bench.transfer_posts --device cuda:0 --mib 64

Batches of receives are posted one right after the other while a batch before them moves; between batches this thread
computes for 0.1 ms. Medians in us, wall and processor time, of the first post of a batch and of the others:
where only the first is dear, code and data had left the caches; where all are, with `direct` alone, they waited for
the polling thread. `early`: posted before the peer sends; `late`: once the peer has sent.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import ucxx._lib.libucxx as ucx
from ucxx._lib.arr import Array

from bench.transfer_pair import MIB, memory
from bench.transfer_raw import make_worker
from bench.transfer_ways import WAYS, Way
from services.engine.transfer.page_memory import Buffer

BATCH, NUM_PAGES = 8, 24
_NAP_S = 2e-5
_TAG = 2 << 56


def _pages(device: str, num_bytes: int) -> list[Any]:
    block: Buffer = memory(device).allocate(NUM_PAGES * num_bytes)
    return [Array(block[start : start + num_bytes]) for start in range(0, NUM_PAGES * num_bytes, num_bytes)]


def send(pipe: Connection, device: str, num_bytes: int) -> None:
    """The peer: sends the batch whose first number comes over `pipe`, until None comes."""
    memory(device).bind_thread()
    pages, worker = _pages(device, num_bytes), make_worker()
    endpoint = ucx.UCXEndpoint.create(worker, "127.0.0.1", pipe.recv(), True)
    flying: list[Any] = []
    while True:
        worker.progress()
        flying = [request for request in flying if not request.completed]
        if pipe.poll():
            first: int | None = pipe.recv()
            if first is None:
                return
            numbers = range(first, first + BATCH)
            flying += [endpoint.tag_send(pages[number % NUM_PAGES], ucx.UCXXTag(_TAG + number)) for number in numbers]
            worker.progress()
            pipe.send("sent")
        elif not flying:
            time.sleep(_NAP_S)


class Posts:
    """The receiving side of one way; what each post took."""

    def __init__(self, device: str, num_bytes: int, way: Way, cores: tuple[int, int] | None) -> None:
        """`cores`: of the peer and the thread that posts, and of whoever polls."""
        bind = memory(device).bind_thread
        bind()
        self._pages = _pages(device, num_bytes)
        self._is_hot = way.hot_s > 0
        self._worker = make_worker(is_queued=self._is_hot and way.is_queued)
        self._worker.set_progress_thread_start_callback(bind)
        self._endpoints: list[Any] = []
        self._listener = ucx.UCXListener.create(self._worker, 0, self._endpoints.append, deliver_endpoint=True)
        self._pipe, far_end = multiprocessing.get_context("spawn").Pipe()
        self._child = multiprocessing.get_context("spawn").Process(
            target=send, args=(far_end, device, num_bytes), daemon=True
        )
        _pin(cores and cores[0])
        self._child.start()
        self._pipe.send(int(self._listener.port))
        _pin(cores and cores[1])
        if self._is_hot:
            self._worker.start_progress_thread(True)
            _pin(cores and cores[0])
        self._until(lambda: bool(self._endpoints))
        self._numbers = itertools.count(1, BATCH)

    def measure(self, num_batches: int, *, is_early: bool) -> list[list[tuple[int, int]]]:
        """(wall, processor) ns of each post of each batch."""
        moving: list[Any] = []
        taken: list[list[tuple[int, int]]] = []
        for first in itertools.islice(self._numbers, num_batches):
            _compute(1e-4)
            if not is_early:
                self._order(first)
            posted, times = self._post(first)
            taken.append(times)
            if is_early:
                self._order(first)
            self._until(lambda before=moving: all(request.completed for request in before))  # type: ignore[misc]
            moving = posted
        self._until(lambda: all(request.completed for request in moving))
        return taken

    def close(self) -> None:
        """End both sides."""
        if self._is_hot:
            self._worker.stop_progress_thread()
        self._pipe.send(None)
        self._child.join(10)

    def _post(self, first: int) -> tuple[list[Any], list[tuple[int, int]]]:
        endpoint, posted, times = self._endpoints[0], [], []
        for number in range(first, first + BATCH):
            page, tag = self._pages[number % NUM_PAGES], ucx.UCXXTag(_TAG + number)
            cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
            posted.append(endpoint.tag_recv(page, tag))
            times.append((time.perf_counter_ns() - wall, time.thread_time_ns() - cpu))
        return posted, times

    def _order(self, first: int) -> None:
        self._pipe.send(first)
        self._until(self._pipe.poll)
        self._pipe.recv()

    def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            if self._is_hot:
                time.sleep(_NAP_S)
            else:
                self._worker.progress()


def _pin(core: int | None) -> None:
    """Keep this thread, and whatever it starts, on a core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def _compute(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def _on(thread: str, work: Callable[[], None]) -> None:
    """Run it on this thread ("main") or another."""
    if thread == "main":
        work()
        return
    other = threading.Thread(target=work)
    other.start()
    other.join()


def tell(name: str, taken: list[list[tuple[int, int]]]) -> None:
    """A line of the table."""
    groups = [batch[0] for batch in taken], [post for batch in taken for post in batch[1:]]
    columns = [f"{statistics.median(time) / 1e3:9.1f}" for group in groups for time in zip(*group, strict=True)]
    print(f"{name:22}", *columns, flush=True)


def case(posts: Posts, name: str, options: argparse.Namespace, *, is_early: bool) -> None:
    """Measure and print, on the thread that is to post."""
    memory(options.device).bind_thread()
    tell(name, posts.measure(options.batches, is_early=is_early))


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or a CUDA device, e.g. cuda:0, for both processes")
    parser.add_argument("--mib", type=float, default=1.0, help="page size")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--cores", type=int, nargs=2, help="of the peer and what posts, and of what polls")
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    print(f"{'':22} {'first':>9} {'cpu':>9} {'others':>9} {'cpu':>9}")
    for name in options.ways:
        posts = Posts(options.device, int(options.mib * MIB), WAYS[name], options.cores)
        for thread, when in itertools.product(("main", "other"), ("early", "late")):
            _on(thread, partial(case, posts, f"{name} {thread} {when}", options, is_early=when == "early"))
        posts.close()


if __name__ == "__main__":
    main()
