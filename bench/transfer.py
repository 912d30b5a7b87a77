"""GB/s of the KV transfer beside raw UCXX, by message size and depth, between two processes, in one run.

    python -m bench.transfer                                     # host pages, over what UCX picks (TCP on loopback)
    python -m bench.transfer --device cuda:0                     # device pages (cuda_ipc on one card)
    python -m bench.transfer --mib 16 64 --depth 1 4 --rounds 5 --json out.json

`raw` keeps `depth` tagged sends in flight between the same pages by UCXX's synchronous API in a busy loop, with no
protocol but the same UCX settings: what UCX itself reaches. `kv` pushes through `KvSender` and `KvReceiver` as engines
do, without gather and scatter, `depth` pushes unanswered at a time. Rounds of both alternate; the median counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import select
import statistics
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.transfer_raw import RawReceiver, RawSender
from services.common.ipc import AttemptKey
from services.engine.transfer.config import TransferConfig
from services.engine.transfer.events import PeerAddress, PeerLost, PeerProven, Pushed, Received, SenderEvent
from services.engine.transfer.page_memory import HostMemory, PageMemory
from services.engine.transfer.pages import PagePool
from services.engine.transfer.receiver import KvReceiver
from services.engine.transfer.sender import KvSender

MIB = 1 << 20
KEY = AttemptKey("0" * 32, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    mib: float
    depth: int
    num_messages: int

    @property
    def num_bytes(self) -> int:
        """Of one message."""
        return int(self.mib * MIB)


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians over the rounds."""

    mib: float
    depth: int
    raw_gb_per_s: float
    kv_gb_per_s: float
    share: float


def memory(device: str) -> PageMemory:
    """Host memory for "cpu", else that CUDA device's."""
    if device == "cpu":
        return HostMemory()
    from services.engine.transfer.device_memory import DeviceMemory

    return DeviceMemory(device)


def serve(pipe: Connection, device: str, num_pages: int, page_bytes: int, spin_s: float) -> None:
    """The receiving process: a raw receive for every Case that comes, KV pushes meanwhile, until None comes."""
    pool = PagePool(memory(device), num_pages, page_bytes)
    config = TransferConfig("decode", "d", "bench", credit=num_pages, spin_s=spin_s)
    receiver, raw = KvReceiver(config, pool), RawReceiver()
    receiver.expect(KEY)
    pipe.send((receiver.port, raw.port))
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    poller.register(receiver.wake_fd, select.POLLIN)
    while True:
        if any(fd == pipe.fileno() for fd, _ in poller.poll()):
            case: Case | None = pipe.recv()
            if case is None:
                break
            pages = [pool.acquire() for _ in range(case.depth)]
            raw.receive([page.buffer[: case.num_bytes] for page in pages if page], case.num_messages, pipe)
            for page in pages:
                if page is not None:
                    page.release()
        for event in receiver.poll():
            if isinstance(event, Received):
                event.page.release()
    receiver.close()


class Bench:
    """The sending process: a KvSender and a raw sender to the same peer, over the same pages."""

    def __init__(self, pipe: Connection, pool: PagePool, spin_s: float) -> None:
        self._pipe = pipe
        self._pool = pool
        kv_port, raw_port = pipe.recv()
        self._sender = KvSender(TransferConfig("prefill", "p", "bench", spin_s=spin_s), pool)
        self._sender.connect(PeerAddress("decode", "127.0.0.1", kv_port, "d", "bench"))
        self.proven = self._wait_proven()
        self._raw = RawSender("127.0.0.1", raw_port)

    def raw(self, case: Case) -> float:
        """GB/s of UCXX alone."""
        self._pipe.send(case)
        self._pipe.recv()  # its receives are posted
        pages = [page for page in (self._pool.acquire() for _ in range(case.depth)) if page]
        seconds = self._raw.send([page.buffer[: case.num_bytes] for page in pages], case.num_messages)
        for page in pages:
            page.release()
        return case.num_messages * case.num_bytes / seconds / 1e9

    def kv(self, case: Case) -> float:
        """GB/s of pushes, from the first to the last answer."""
        started = time.perf_counter()
        sent = answered = 0
        while answered < case.num_messages:
            while sent < case.num_messages and sent - answered < case.depth:
                page = self._pool.acquire()
                if page is None:
                    break
                self._sender.push("decode", KEY, sent, 1, page, case.num_bytes)
                sent += 1
            answered += sum(isinstance(event, Pushed) for event in self._events())
        return case.num_messages * case.num_bytes / (time.perf_counter() - started) / 1e9

    def close(self) -> None:
        """End both processes' transfers."""
        self._pipe.send(None)
        self._sender.close()

    def _events(self) -> list[SenderEvent]:
        select.select([self._sender.wake_fd], [], [], 10)
        events = self._sender.poll()
        lost = [event for event in events if isinstance(event, PeerLost)]
        if lost or not events:
            raise SystemExit(f"the transfer failed: {lost or 'nothing happened for 10 s'}")
        return events

    def _wait_proven(self) -> PeerProven:
        return next(event for event in self._events() if isinstance(event, PeerProven))


def measure(bench: Bench, case: Case, rounds: int) -> Figure:
    """Alternate both ways, after one round each that warms the pages of this size."""
    bench.raw(case), bench.kv(case)
    pairs = [(bench.raw(case), bench.kv(case)) for _ in range(rounds)]
    raw, kv = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Figure(case.mib, case.depth, raw, kv, kv / raw)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or a CUDA device, e.g. cuda:0")
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 4, 16, 64], help="message sizes")
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 4, 8], help="messages in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total-mib", type=float, default=256, help="bytes of one round of one case")
    parser.add_argument("--spin-us", type=float, default=0, help="TransferConfig.spin_s of both sides")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    num_pages, page_bytes, spin_s = max(options.depth), int(max(options.mib) * MIB), options.spin_us / 1e6
    pipe, far_end = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=serve, args=(far_end, options.device, num_pages, page_bytes, spin_s), daemon=True)
    child.start()
    bench = Bench(pipe, PagePool(memory(options.device), num_pages, page_bytes), spin_s)
    print(f"{options.device} pages, lane {bench.proven.lane}, proof {bench.proven.gb_per_s:.2f} GB/s")
    print(f"{'MiB':>8} {'depth':>6} {'raw GB/s':>10} {'kv GB/s':>10} {'share':>7}")
    figures = []
    for mib in options.mib:
        for depth in options.depth:
            num_messages = max(2 * depth, int(options.total_mib / mib))
            figure = measure(bench, Case(mib, depth, num_messages), options.rounds)
            figures.append(asdict(figure))
            print(f"{mib:8g} {depth:6} {figure.raw_gb_per_s:10.2f} {figure.kv_gb_per_s:10.2f} {figure.share:7.0%}")
    bench.close()
    child.join(10)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
