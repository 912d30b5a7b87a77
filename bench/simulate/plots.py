"""Curves over the load, as PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from bench.simulate.sweep import Line, curves


def plot_load(lines: Iterable[Line], title: str, path: Path) -> None:
    """Goodput, time to first token and preemptions over the offered load, one line for each name."""
    figure, (good, first, preempted) = plt.subplots(1, 3, figsize=(14, 4))
    for name, curve in curves(lines).items():
        offered = [one.offered_per_s for one in curve]
        good.plot(offered, [one.goodput_per_s for one in curve], marker="o", markersize=3, label=name)
        first.plot(offered, [one.ttft_s[2] for one in curve], marker="o", markersize=3, label=name)
        preempted.plot(offered, [100 * one.preempted_share for one in curve], marker="o", markersize=3, label=name)
    for axes, what in ((good, "goodput (requests/s)"), (first, "TTFT p99 (s)"), (preempted, "preempted (%)")):
        axes.set_xlabel("offered (requests/s)")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3)
    good.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
