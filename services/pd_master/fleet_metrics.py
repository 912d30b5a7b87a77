"""How many workers this master can give work to, by role: read from the registry when a scrape comes."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.common.messages import Role
from services.pd_master.prefix_index import PrefixIndex
from services.pd_master.selector import Snapshot

_BLOCKS = "Blocks of 64 prompt tokens known to lie in prefix caches, each once a worker"


class FleetCollector(Collector):
    """`sluice_gateway_workers`, `sluice_gateway_proven_pairs` and `sluice_gateway_prefix_blocks`.

    A role without workers shows as 0, not as nothing.
    """

    def __init__(self, registry: CollectorRegistry, snapshot: Callable[[], Snapshot], prefixes: PrefixIndex) -> None:
        self._snapshot = snapshot
        self._prefixes = prefixes
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Called by the registry for every scrape."""
        views = self._snapshot().workers
        counts = Counter((view.role, view.takes_work) for view in views)
        workers = GaugeMetricFamily(
            "sluice_gateway_workers",
            "Workers with a session, by role and by whether they get new work",
            labels=("worker_role", "state"),
        )
        for role in Role:
            for takes_work, state in ((True, "open"), (False, "closed")):
                workers.add_metric((role.value, state), counts[role, takes_work])
        yield workers
        pairs = sum(len(view.proven) for view in views)
        yield GaugeMetricFamily("sluice_gateway_proven_pairs", "Pairs of workers that KV may cross", value=pairs)
        yield GaugeMetricFamily("sluice_gateway_prefix_blocks", _BLOCKS, value=self._prefixes.num_entries)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Names alone, so that registering asks for no snapshot."""
        yield GaugeMetricFamily("sluice_gateway_workers", "")
        yield GaugeMetricFamily("sluice_gateway_proven_pairs", "")
        yield GaugeMetricFamily("sluice_gateway_prefix_blocks", "")
