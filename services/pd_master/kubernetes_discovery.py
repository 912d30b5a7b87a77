"""Workers' addresses from the pods of a namespace: list, then watch from where the list ended, without end.

    listing --list--> watching --the server ends the watch--> watching, from the last event or bookmark
       ^                 |
       '--- back-off <---'--- 410, broken stream, silence, an error: list again

A watch alone cannot tell what it missed, so after anything but an orderly end everything is listed anew: that is what
leaves no ghosts. While the API server is away the last known pods are kept, and `sluice_discovery_stale` says so.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prometheus_client import CollectorRegistry

from services.common import rpc
from services.common.metrics import Series
from services.pd_master.discovery import Discovery
from services.pd_master.pod_api import ApiAccess, ApiError, PodApi, own_namespace
from services.pd_master.pod_cache import PodCache

log = logging.getLogger(__name__)

WATCH_S = (240, 300)
"""How long the server is asked to keep a watch: drawn between these, so that masters do not come back in step."""
_BACKOFF_FIRST_S = 0.2
_BACKOFF_MOST_S = 15.0


class DiscoveryMetrics:
    """Series of discovery."""

    def __init__(self, registry: CollectorRegistry) -> None:
        series = Series(registry)
        self.stale = series.gauge("discovery_stale", "1 while the known workers may be out of date")
        self.pods = series.gauge(
            "discovery_pods", "Workers' pods with an address, by whether they get work", ("state",)
        )
        self.lists = series.counter("discovery_lists_total", "Times all pods were listed")
        self.events = series.counter("discovery_events_total", "Events of watches", ("type",))
        self.failures = series.counter("discovery_failures_total", "Lists and watches that failed", ("reason",))

    def show(self, cache: PodCache) -> None:
        """After each change."""
        withheld = len(cache.withheld)
        self.pods.labels("open").set(len(cache.addresses) - withheld)
        self.pods.labels("withheld").set(withheld)


class KubernetesDiscovery:
    """A `Discovery`, driven by whoever iterates `addresses`: the registry, on the event loop of a pd_master."""

    def __init__(self, api: PodApi, metrics: DiscoveryMetrics, backoff: rpc.Backoff | None = None) -> None:
        self._api = api
        self._metrics = metrics
        self._backoff = backoff or rpc.Backoff(_BACKOFF_FIRST_S, _BACKOFF_MOST_S)
        self._cache = PodCache()
        self._version: str | None = None
        """Where the next watch begins; None when everything has to be listed first."""
        metrics.stale.set(1)

    @property
    def withheld(self) -> frozenset[str]:
        """Addresses that get no new work: not Ready, or being deleted."""
        return self._cache.withheld

    async def addresses(self) -> AsyncGenerator[frozenset[str], None]:
        """Yield the whole set of host:port after each change; never ends."""
        last: frozenset[str] | None = None
        try:
            async with aclosing(self._changes()) as changes:
                async for _ in changes:
                    self._metrics.show(self._cache)
                    if self._cache.addresses != last:
                        last = self._cache.addresses
                        log.info("workers' pods: %s", ", ".join(sorted(last)) or "none")
                        yield last
        finally:
            await self._api.close()

    async def _changes(self) -> AsyncGenerator[None, None]:
        """Bring the cache up to date and yield each time it may have changed."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                    yield
                async with aclosing(self._watch()) as watched:
                    async for _ in watched:
                        yield
            except ApiError as error:
                await self._failed(error)

    async def _list(self) -> None:
        listing = await self._api.list()
        self._cache.replace(listing.pods)
        self._version = listing.resource_version
        self._metrics.lists.inc()
        self._metrics.stale.set(0)

    async def _watch(self) -> AsyncGenerator[None, None]:
        assert self._version is not None
        empty = True
        async with aclosing(self._api.watch(self._version, random.randint(*WATCH_S))) as events:
            async for event in events:
                empty = False
                self._backoff.reset()
                self._metrics.events.labels(event.type).inc()
                self._version = event.resource_version
                if event.type == "DELETED":
                    self._cache.remove(event.manifest)
                elif event.type != "BOOKMARK":
                    self._cache.put(event.manifest)
                yield
        if empty:  # a proxy that ends every watch at once must not be asked in a tight loop
            await asyncio.sleep(self._backoff.next_s())

    async def _failed(self, error: ApiError) -> None:
        self._version = None
        self._metrics.failures.labels(error.reason).inc()
        self._metrics.stale.set(1)
        wait_s = self._backoff.next_s()
        log.warning("discovery: %s; listing again in %.1f s", error, wait_s)
        await asyncio.sleep(wait_s)


def discovery_of_pods(selector: str, namespace: str | None, registry: CollectorRegistry) -> Discovery:
    """For a gateway in a pod; no namespace is the pod's own. Raises ConfigError outside of one."""
    api = PodApi(ApiAccess.of_this_pod(), namespace or own_namespace(), selector)
    return KubernetesDiscovery(api, DiscoveryMetrics(registry))
