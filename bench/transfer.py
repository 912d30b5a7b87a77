"""GB/s of the KV transfer beside raw UCXX and a plain copy, by message size and depth, between two processes.

    python -m bench.transfer                                             # host pages, over shared memory
    python -m bench.transfer --device cuda:0                             # device pages, both processes on one card
    python -m bench.transfer --device cuda:0 --peer-device cuda:1        # from card to card
    python -m bench.transfer --mib 16 64 --depth 1 4 --rounds 5 --json out.json

`copy` copies such messages one after the other within this process, from a page here to memory of the peer's device.
`raw` keeps `depth` tagged sends in flight between all of those pages by UCXX's synchronous API in a busy loop, with no
protocol but the same UCX settings: what UCX itself reaches. `kv` pushes through `KvSender` and `KvReceiver` as engines
do, without gather and scatter: `depth` payloads move at once (one after the other where the receiver reads them out of
the sender's pages), and both processes have four times as many pages as the largest depth asked for. A push that does
not land ends the run. Rounds of all three take turns; the median counts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.transfer_pair import MIB, Case, Pair, PairOptions
from bench.transfer_ways import WAYS

HOST_TOTAL_MIB, DEVICE_TOTAL_MIB = 256, 4096
"""Of a round: in one that is over after a few messages, its first and its last are most of the time."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Medians over the rounds."""

    mib: float
    depth: int
    copy_gb_per_s: float
    raw_gb_per_s: float
    kv_gb_per_s: float

    def line(self) -> str:
        """A row of the table."""
        return (
            f"{self.mib:8g} {self.depth:6} {self.copy_gb_per_s:10.2f} {self.raw_gb_per_s:10.2f} "
            f"{self.kv_gb_per_s:10.2f} {self.kv_gb_per_s / self.raw_gb_per_s:7.0%} "
            f"{self.kv_gb_per_s / self.copy_gb_per_s:8.0%}"
        )


def measure(pair: Pair, case: Case, rounds: int) -> Figure:
    """Take turns, after one round each that warms the pages of this size."""
    ways = (pair.copy, pair.raw, pair.kv)
    for way in ways:
        way(case)
    rates = [[way(case) for way in ways] for _ in range(rounds)]
    copy, raw, kv = (statistics.median(values) for values in zip(*rates, strict=True))
    return Figure(case.mib, case.depth, copy, raw, kv)


def run(options: argparse.Namespace) -> list[Figure]:
    """Measure every case, printing each."""
    depth = max(options.depth)
    given = {"spin_s": (options.spin_us, 1e6), "naps_s": (options.naps_ms, 1e3)}
    pace = {name: value / scale for name, (value, scale) in given.items() if value is not None}
    total_mib = options.total_mib or (HOST_TOTAL_MIB if options.device == "cpu" else DEVICE_TOTAL_MIB)
    settings = PairOptions(
        options.device, options.peer_device or options.device, num_pages=4 * depth, credit=3 * depth,
        page_bytes=int(max(options.mib) * MIB), pace=pace, may_map=WAYS[options.way],
        cores=options.cores and tuple(options.cores),
    )  # fmt: skip
    pair = Pair(settings, multiprocessing.get_context("spawn"))
    print(f"{settings.device} to {settings.peer_device} {pace or ''}")
    print(f"{'MiB':>8} {'depth':>6} {'copy GB/s':>10} {'raw GB/s':>10} {'kv GB/s':>10} {'of raw':>7} {'of copy':>8}")
    figures = []
    for depth in options.depth:
        proven = pair.connect(depth)
        for mib in options.mib:
            figures.append(measure(pair, Case(mib, depth, max(2 * depth, int(total_mib / mib))), options.rounds))
            print(figures[-1].line(), flush=True)
    print(f"lane {proven.lane}, its proof moved {proven.gb_per_s:.2f} GB/s")
    pair.close()
    return figures


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or a CUDA device, e.g. cuda:0")
    parser.add_argument("--peer-device", help="where the receiving process has its pages; default: the same")
    parser.add_argument("--mib", type=float, nargs="+", default=[1, 4, 16, 64], help="message sizes")
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 4, 8], help="messages in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--total-mib", type=float,
        help=f"bytes of one round of one case; default: {HOST_TOTAL_MIB}, from device pages {DEVICE_TOTAL_MIB}",
    )  # fmt: skip
    parser.add_argument("--spin-us", type=float, help="TransferConfig.spin_s of both sides")
    parser.add_argument("--naps-ms", type=float, help="TransferConfig.naps_s of both sides")
    parser.add_argument("--way", choices=WAYS, default="mapped", help="see bench.transfer_stages; matters for devices")
    parser.add_argument(
        "--cores", type=int, nargs=2, help="keep each process on a core of its own: steadier where others work too"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    figures = run(options)
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))


if __name__ == "__main__":
    main()
