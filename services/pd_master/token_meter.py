"""The two series that are fed for every delta: output tokens and the time between them.

The client library's own counters take a lock for each observation, which at a hundred thousand tokens a second is a
tenth of a core; these are plain numbers of the event loop, read when a scrape comes.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from services.common.metrics import SECONDS_BUCKETS


class TokenMeter(Collector):
    """`sluice_gateway_output_tokens_total` and `sluice_gateway_inter_token_seconds`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.num_tokens = 0
        self._counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self._sum_s = 0.0
        registry.register(self)

    def observe(self, seconds: float, num_tokens: int) -> None:
        """`num_tokens` tokens of one choice came `seconds` after the ones before: each counts an equal part."""
        each = seconds / num_tokens
        self._counts[bisect_left(SECONDS_BUCKETS, each)] += num_tokens
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every scrape."""
        yield CounterMetricFamily("sluice_gateway_output_tokens", "Tokens received for clients", value=self.num_tokens)
        bounds = [*map(floatToGoString, SECONDS_BUCKETS), "+Inf"]
        yield HistogramMetricFamily(
            "sluice_gateway_inter_token_seconds",
            "Between a choice's tokens",
            buckets=list(zip(bounds, accumulate(self._counts), strict=True)),
            sum_value=self._sum_s,
        )
