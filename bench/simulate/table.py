"""Figures as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from bench.simulate.figures import Figures
from bench.simulate.sweep import ATTAINED, Line, curves, knee_per_s

_HEAD = (
    f"{'':<16}{'offered/s':>10}{'good/s':>8}{'good %':>8}{'TTFT p50':>10}{'p99 s':>8}{'TPOT p50':>10}{'p99 ms':>8}"
    f"{'ITL p99':>9}{'tok/s':>8}{'preempted %':>12}{'refused %':>10}{'cached %':>9}{'imbalance':>10}"
)


def head() -> str:
    """Names of the columns."""
    return _HEAD


def row(line: Line) -> str:
    """One run."""
    one = line.figures
    return (
        f"{line.name:<16}{one.offered_per_s:>10.2f}{one.goodput_per_s:>8.2f}{100 * one.good_share:>8.1f}"
        f"{one.ttft_s[0]:>10.3f}{one.ttft_s[2]:>8.2f}{1e3 * one.tpot_s[0]:>10.1f}{1e3 * one.tpot_s[2]:>8.1f}"
        f"{1e3 * one.itl_s[2]:>9.1f}{one.output_tokens_per_s:>8.0f}{100 * one.preempted_share:>12.2f}"
        f"{100 * one.refused_share:>10.2f}{100 * one.cached_share:>9.1f}{one.imbalance:>10.2f}"
    )


def knees(lines: Iterable[Line]) -> list[str]:
    """Where each curve leaves the bounds, its best goodput, and its preemptions at the worst load."""
    by_name = curves(lines)
    return [f"{name:<16}{_summary(curve)}" for name, curve in by_name.items()]


def _summary(curve: list[Figures]) -> str:
    knee, best = knee_per_s(curve), max(one.goodput_per_s for one in curve)
    worst = max(one.preempted_share for one in curve)
    return f"knee ({ATTAINED:.0%} good) {knee:7.2f}/s   best goodput {best:7.2f}/s   preempted at most {worst:.2%}"
