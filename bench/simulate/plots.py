"""Curves over the load, as PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.simulate.sweep import ATTAINED, Line, curves, knee_per_s


def plot_load(lines: Iterable[Line], title: str, path: Path) -> None:
    """Goodput, its share of the load with each knee, time to first token and preemptions, one line for each name."""
    figure, (good, share, first, preempted) = plt.subplots(1, 4, figsize=(18, 4))
    share.axhline(100 * ATTAINED, color="grey", linewidth=0.8)
    for name, curve in curves(lines).items():
        offered = [one.offered_per_s for one in curve]
        (line,) = good.plot(offered, [one.goodput_per_s for one in curve], marker="o", markersize=3, label=name)
        share.plot(offered, [100 * one.good_share for one in curve], marker="o", markersize=3)
        share.axvline(knee_per_s(curve), color=line.get_color(), linestyle=":")
        first.plot(offered, [one.ttft_s[2] for one in curve], marker="o", markersize=3, label=name)
        preempted.plot(offered, [100 * one.preempted_share for one in curve], marker="o", markersize=3, label=name)
    rates = (good, "goodput (requests/s)"), (share, "good (%), knees dotted")
    for axes, what in (*rates, (first, "TTFT p99 (s)"), (preempted, "preempted (%)")):
        axes.set_xlabel("offered (requests/s)")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3)
    good.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
