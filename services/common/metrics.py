"""Prometheus series of a worker's control process. Each declared series is fed somewhere.

A worker declares only the series of its own halves: a prefill worker has no inter-token time, a decode worker no
prefill time. Stage times are those that the user waits for; the engine's own totals pass through `EngineCounters`.
"""

import bisect
import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from services.common.ipc import StepDone, Usage

SECONDS_BUCKETS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
    1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0,
)  # fmt: skip
ROWS_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Series:
    """Declares series in one registry under the prefix `sluice_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def seconds(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
        """A histogram of durations; `name` ends in `_seconds`."""
        return Histogram(f"sluice_{name}", text, labels, registry=self.registry, buckets=SECONDS_BUCKETS)

    def rows(self, name: str, text: str) -> Histogram:
        """A histogram of counts."""
        return Histogram(f"sluice_{name}", text, registry=self.registry, buckets=ROWS_BUCKETS)

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        """A total; `name` ends in `_total`."""
        return Counter(f"sluice_{name}", text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        """A value that goes up and down."""
        return Gauge(f"sluice_{name}", text, labels, registry=self.registry)


class EngineCounters(Collector):
    """The engine's totals as it reports them: `name` becomes `sluice_engine_<name>_total`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.values: dict[str, float] = {}
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Called by the registry for every scrape."""
        for name, value in self.values.items():
            yield CounterMetricFamily(f"sluice_engine_{name}", f"{name.replace('_', ' ')} since start", value=value)


class TokenHistogram(Collector):
    """A histogram for what happens at every token: an update costs a tenth of `Histogram.observe`, without its lock.

    For one thread. Seconds, in SECONDS_BUCKETS.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._counts = [0] * (len(SECONDS_BUCKETS) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(SECONDS_BUCKETS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Called by the registry for every scrape."""
        bounds = [*map(str, SECONDS_BUCKETS), "+Inf"]
        buckets = list(zip(bounds, map(float, itertools.accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class EngineMetrics:
    """What every engine reports: steps, slots, pages."""

    def __init__(self, series: Series) -> None:
        self.counters = EngineCounters(series.registry)
        self.step = series.seconds("engine_step_seconds", "Duration of one engine step")
        self.decode_rows = series.rows("engine_decode_rows", "Sequences decoded in one step")
        self.prefill_tokens = series.counter("engine_prefill_tokens_total", "Prompt tokens computed")
        self.age = series.gauge("engine_last_step_age_seconds", "Age of the engine's last sign of life or running step")
        self.slots = series.gauge("engine_slots", "Slots of the KV pool by state", ("state",))
        self.pages = series.gauge("engine_transfer_pages", "Transfer pages by state", ("state",))
        self.host_pages = series.gauge("engine_host_pages", "Pages of the host cache by state", ("state",))
        self.preemptions = series.counter("engine_preemptions_total", "Sequences that lost their slots")
        self.deferred = series.counter("engine_deferrals_total", "Proposals that the engine had no room for")

    def observe_step(self, step: StepDone) -> None:
        """Once a step."""
        self.step.observe(step.step_s)
        self.decode_rows.observe(step.num_decode_rows)
        self.prefill_tokens.inc(step.num_prefill_tokens)

    def observe_usage(self, usage: Usage) -> None:
        """Before a scrape: slots and pages by state."""
        self.slots.labels("free").set(usage.free_slots)
        self.slots.labels("held").set(usage.held_slots)
        self.slots.labels("reserved").set(usage.reserved_slots)
        self.slots.labels("evictable").set(usage.evictable_slots)
        self.pages.labels("free").set(usage.pages_free)
        self.pages.labels("in_use").set(usage.pages_in_use)
        self.pages.labels("quarantined").set(usage.pages_quarantined)
        self.host_pages.labels("free").set(usage.host_pages_free)
        self.host_pages.labels("in_use").set(usage.host_pages_in_use)


class RouterMetrics:
    """What the Router publishes for selection, shedding and autoscaling."""

    def __init__(self, series: Series) -> None:
        self.admitted_peak_ratio = series.gauge("router_admitted_peak_ratio", "Peak of all that is in over the pool")
        self.demand_ratio = series.gauge("router_demand_ratio", "Peak with all that waits over the pool, unbounded")
        self.predicted_wait = series.gauge("router_predicted_wait_seconds", "Wait that a new request would see")
        self.waiting = series.gauge("router_waiting_requests", "Requests in the queue")
        self.running = series.gauge("router_running_requests", "Requests that are in")
        self.queue = series.seconds("queue_seconds", "From arrival at this worker to admission by the engine")
        self.refused = series.counter("refused_requests_total", "Requests refused before any work", ("reason",))


class PrefillMetrics:
    """The first half of a request's life."""

    def __init__(self, series: Series) -> None:
        self.prompt_tokens = series.counter("prompt_tokens_total", "Prompt tokens of admitted requests")
        self.cached_tokens = series.counter("prompt_cached_tokens_total", "Prompt tokens found in the prefix cache")
        self.prefill = series.seconds("prefill_seconds", "From admission to the first token")
        self.first_token = series.seconds("worker_first_token_seconds", "From arrival here to the first token")
        self.placement = series.seconds("reservation_wait_seconds", "From the call to the decode worker to its grant")
        self.hand_over = series.seconds("hand_over_seconds", "From the first token to the decode worker's Joined")
        self.reservations = series.counter("reservations_total", "Answers to reservations", ("outcome",))


class TransferMetrics:
    """KV on its way out of a prefill worker."""

    def __init__(self, series: Series) -> None:
        self.num_bytes = series.counter("transfer_bytes_total", "KV pushed")
        self.push = series.seconds("transfer_seconds", "From a job's first byte to its last")
        self.exposed = series.seconds("transfer_exposed_seconds", "Push time left after prefill compute ended")
        self.gb_per_s = series.gauge("transfer_pair_gigabytes_per_second", "Speed of the proof", ("peer", "lane"))
        self.failures = series.counter("transfer_failures_total", "Transfers that failed", ("kind",))


class DecodeMetrics:
    """The second half of a request's life."""

    def __init__(self, series: Series) -> None:
        self.join = series.seconds("join_seconds", "From the grant of a reservation to the first decode step")
        self.grant = series.seconds("reservation_queue_seconds", "From a reservation's arrival to its grant")
        self.inter_token = TokenHistogram(
            series.registry, "sluice_inter_token_seconds", "Between two tokens of one sequence"
        )
        self.output_tokens = series.counter("output_tokens_total", "Tokens decoded here")
        self.finished = series.counter("finished_sequences_total", "Sequences that ended here", ("reason",))
        self.revoked = series.counter("reservations_revoked_total", "Reservations taken back to find slots")
        self.leases_expired = series.counter("leases_expired_total", "Reservations ended by their lease")


class SessionMetrics:
    """Streams to masters."""

    def __init__(self, series: Series) -> None:
        self.masters = series.gauge("sessions", "Masters with a live session")
        self.frames = series.counter("session_frames_total", "Frames of deltas sent to masters")
        self.deltas = series.counter("session_deltas_total", "Deltas sent to masters")
        self.errors = series.counter("rpc_errors_total", "RPCs that ended in an error", ("method", "code"))


class WorkerMetrics:
    """All series of one worker. `has_prefill` and `has_decode` say which halves of a request it takes."""

    def __init__(self, *, has_prefill: bool, has_decode: bool) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        series = Series(self.registry)
        self.engine = EngineMetrics(series)
        self.router = RouterMetrics(series)
        self.sessions = SessionMetrics(series)
        self.prefill = PrefillMetrics(series) if has_prefill else None
        self.transfer = TransferMetrics(series) if has_prefill else None
        self.decode = DecodeMetrics(series) if has_decode else None

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)
