"""Where the time of a KV page goes, stage by stage and call by call, on both sides.

    python -m bench.transfer_stages                                    # host pages
    python -m bench.transfer_stages --device cuda:0 --mib 64           # both processes on one card
    python -m bench.transfer_stages --cores 0 1 --mib 0.0625 1 4 16

Every case runs twice: as it is, for its rate beside raw UCXX, then stamped (`bench.transfer_probe`), for the rest:
medians and 90th percentiles of a page's moments after it was announced, and what each thread of P, which sends, and
of D did, in us a page of wall and of processor time.

Ways, each with a pair of processes of its own: `mapped`, the receiver maps the sender's pages and reads payloads out of
them, where both are on devices of one host; `ucx`, UCX moves payloads, as it does everywhere else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from bench.transfer_pair import MIB, Case, Pair, PairOptions
from bench.transfer_probe import STAGES, Report
from bench.transfer_ways import WAYS

MIN_COST_US = 0.5


def moments(sending: Report, receiving: Report) -> list[str]:
    """A line for each stage: us after the page was announced."""
    pages: dict[int, dict[str, int]] = defaultdict(dict)
    for stage, seq, at in sending.moments + receiving.moments:
        pages[seq][stage] = at
    whole = [page for page in pages.values() if len(page) == len(STAGES)]
    lines = []
    for stage in STAGES[1:] if whole else ():
        after = sorted((page[stage] - page["announced"]) / 1e3 for page in whole)
        lines.append(f"    {stage:10} {statistics.median(after):10.1f} us, p90 {after[int(0.9 * len(after))]:10.1f}")
    return lines


def costs(side: str, report: Report, num_pages: int) -> list[str]:
    """A line for each thread: its calls, the longest first."""
    lines = []
    for thread in sorted({cost.thread for cost in report.costs}):
        mine = sorted((cost for cost in report.costs if cost.thread == thread), key=lambda cost: -cost.wall_us)
        told = [
            f"{name} {wall_us / num_pages:.1f} ({cpu_us / num_pages:.1f}, {num_calls / num_pages:.1f})"
            for _, name, num_calls, wall_us, cpu_us in mine
            if wall_us / num_pages >= MIN_COST_US
        ]
        lines.append(f"    {side} {thread}: {'; '.join(told)}")
    return lines


def rates(options: PairOptions, cases: list[Case], rounds: int) -> Iterator[str]:
    """A line for each case: the transfer beside raw UCXX."""
    pair = Pair(options, multiprocessing.get_context("spawn"))
    for case in cases:
        pair.connect(case.depth)
        samples = [(pair.raw(case), pair.kv(case)) for _ in range(rounds + 1)][1:]
        raw, kv = (statistics.median(values) for values in zip(*samples, strict=True))
        us = case.num_bytes / 1e3
        yield (
            f"{case.mib:g} MiB x {case.depth}: {kv / raw:.0%} of raw UCXX; "
            f"{kv:.2f} GB/s, {us / kv:.1f} us a page; raw {raw:.2f} GB/s, {us / raw:.1f} us"
        )
    pair.close()


def stages(options: PairOptions, cases: list[Case], rounds: int) -> Iterator[list[str]]:
    """Lines for each case: where a page's time goes."""
    pair = Pair(replace(options, is_probed=True), multiprocessing.get_context("spawn"))
    for case in cases:
        pair.connect(case.depth)
        pair.raw(case)  # answers a connection that would slow the other one down
        pair.kv(case)
        pair.reports()
        for _ in range(rounds):
            pair.kv(case)
        sending, receiving = pair.reports()
        num_pages = rounds * case.num_messages
        yield [
            "  us after its announcement:", *moments(sending, receiving),
            "  us a page, wall (processor time, calls):",
            *costs("P", sending, num_pages), *costs("D", receiving, num_pages),
        ]  # fmt: skip
    pair.close()


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or a CUDA device, e.g. cuda:0")
    parser.add_argument("--peer-device", help="where the receiving process has its pages; default: the same")
    parser.add_argument("--mib", type=float, nargs="+", default=[0.0625, 1, 4, 16, 64], help="page sizes")
    parser.add_argument("--depth", type=int, nargs="+", default=[1, 4, 8], help="pages in flight")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="default: ucx on the host, else both")
    parser.add_argument("--messages", type=int, default=64, help="of a round of one case")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs=2, help="keep each process on a core of its own")
    options = parser.parse_args()
    depth = max(options.depth)
    cases = [Case(mib, each, max(options.messages, 4 * each)) for each in options.depth for mib in options.mib]
    for way in options.ways or (["ucx"] if options.device == "cpu" else list(WAYS)):
        settings = PairOptions(
            options.device, options.peer_device or options.device, num_pages=4 * depth, credit=3 * depth,
            page_bytes=int(max(options.mib) * MIB), pace={}, may_map=WAYS[way],
            cores=options.cores and tuple(options.cores),
        )  # fmt: skip
        heads = list(rates(settings, cases, options.rounds))
        for head, lines in zip(heads, stages(settings, cases, options.rounds), strict=True):
            print(f"{way}, {head}", *lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
