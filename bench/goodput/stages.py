"""Where requests spent their time, as the gateway counts it."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

Totals = dict[str, tuple[float, float]]
"""Stage -> (seconds, requests)."""


def totals(url: str) -> Totals:
    """From the gateway's /metrics."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text):
        for sample in family.samples:
            if sample.name == "sluice_gateway_stage_seconds_sum":
                sums[sample.labels["stage"]] = sample.value
            if sample.name == "sluice_gateway_stage_seconds_count":
                counts[sample.labels["stage"]] = sample.value
    return {stage: (seconds, counts[stage]) for stage, seconds in sums.items()}


def means_ms(before: Totals, after: Totals) -> dict[str, float]:
    """Mean time in each stage between two readings."""
    spent = {}
    for stage, (seconds, count) in after.items():
        seconds_before, count_before = before.get(stage, (0.0, 0.0))
        if count > count_before:
            spent[stage] = 1e3 * (seconds - seconds_before) / (count - count_before)
    return spent
