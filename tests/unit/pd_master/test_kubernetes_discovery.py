"""Discovery against a real HTTP server that plays the API server: whatever happens to the watch, no ghosts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common.rpc import Backoff
from services.pd_master.kubernetes_discovery import DiscoveryMetrics, KubernetesDiscovery
from services.pd_master.pod_api import ApiAccess, PodApi
from tests.fakes.api_server import FakeApiServer, pod

A, B = "10.0.0.1:9001", "10.0.0.2:9001"


class Follower:
    """Iterates a discovery as the registry does and remembers what it said."""

    def __init__(self, discovery: KubernetesDiscovery, registry: CollectorRegistry) -> None:
        self.discovery = discovery
        self.seen: list[frozenset[str]] = []
        self._registry = registry

    async def run(self) -> None:
        """Until cancelled."""
        async with aclosing(self.discovery.addresses()) as found:
            async for addresses in found:
                self.seen.append(addresses)

    @property
    def addresses(self) -> set[str]:
        """As of now."""
        return set(self.seen[-1]) if self.seen else set()

    def metric(self, name: str, **labels: str) -> float:
        """A sample."""
        return self._registry.get_sample_value(f"sluice_discovery_{name}", labels) or 0.0


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop turn until something holds."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - it watches another task's variables
            await asyncio.sleep(0.002)


@asynccontextmanager
async def following(
    server: FakeApiServer, token: Path | None = None, silence_s: float = 30.0
) -> AsyncIterator[Follower]:
    """A discovery of this server, running."""
    registry = CollectorRegistry()
    api = PodApi(ApiAccess(server.url, token, None), "serving", "app=sluice", silence_s=silence_s)
    discovery = KubernetesDiscovery(api, DiscoveryMetrics(registry), Backoff(0.005, 0.02))
    follower = Follower(discovery, registry)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pods_come_and_go() -> None:
    async with FakeApiServer() as server:
        server.put(pod("a", "10.0.0.1"))
        async with following(server) as follower:
            await until(lambda: follower.addresses == {A})
            server.put(pod("b", "10.0.0.2"))
            await until(lambda: follower.addresses == {A, B})
            server.delete("a")
            await until(lambda: follower.addresses == {B})
    assert server.requests[0] == {"path": "/api/v1/namespaces/serving/pods", "labelSelector": "app=sluice"}
    assert server.watches[0]["resourceVersion"] == "101"
    assert server.num_lists == 1


async def test_pod_without_an_address_is_left_out_until_it_has_one() -> None:
    async with FakeApiServer() as server:
        server.put(pod("a", None, ready=False))
        async with following(server) as follower:
            await until(lambda: follower.seen == [frozenset()])
            server.put(pod("a", "10.0.0.1", ready=False))
            await until(lambda: follower.addresses == {A})


async def test_unready_and_leaving_pods_keep_their_address_but_get_no_new_work() -> None:
    async with FakeApiServer() as server:
        server.put(pod("a", "10.0.0.1"))
        server.put(pod("b", "10.0.0.2", ready=False))
        async with following(server) as follower:
            await until(lambda: follower.addresses == {A, B})
            assert follower.discovery.withheld == {B}
            server.put(pod("a", "10.0.0.1", leaving=True))
            await until(lambda: follower.discovery.withheld == {A, B})
            server.put(pod("b", "10.0.0.2"))
            await until(lambda: follower.discovery.withheld == {A})
            assert follower.addresses == {A, B}
            assert (follower.metric("pods", state="open"), follower.metric("pods", state="withheld")) == (1, 1)


async def test_address_of_a_finished_pod_belongs_to_the_pod_that_got_it_next() -> None:
    async with FakeApiServer() as server:
        server.put(pod("old", "10.0.0.1", leaving=True))
        server.put(pod("new", "10.0.0.1"))
        async with following(server) as follower:
            await until(lambda: follower.addresses == {A})
            assert follower.discovery.withheld == set()
            server.put(pod("new", "10.0.0.1", phase="Failed"))
            await until(lambda: follower.discovery.withheld == {A})
            server.delete("old")
            await until(lambda: follower.addresses == set())


async def test_watch_that_ends_in_order_goes_on_from_the_last_bookmark_without_a_list() -> None:
    async with FakeApiServer() as server, following(server) as follower:
        await until(lambda: len(server.watches) == 1)
        server.bookmark()
        await until(lambda: follower.metric("events_total", type="BOOKMARK") == 1)
        server.end_watches()
        await until(lambda: len(server.watches) == 2)
        assert server.watches[1]["resourceVersion"] == str(server.version)
        assert server.num_lists == 1
        assert follower.metric("stale") == 0


async def test_broken_watch_lists_again_and_leaves_no_ghost() -> None:
    async with FakeApiServer() as server:
        server.put(pod("a", "10.0.0.1"))
        server.put(pod("b", "10.0.0.2"))
        async with following(server) as follower:
            await until(lambda: len(server.watches) == 1)
            server.forget("a")  # its DELETED event is lost with the stream
            server.break_watches()
            await until(lambda: follower.addresses == {B})
            assert server.num_lists == 2


async def outdated(server: FakeApiServer) -> None:
    server.put(pod("a", "10.0.0.1"))
    async with following(server) as follower:
        await until(lambda: len(server.watches) == 1)
        server.forget("a")
        server.put(pod("b", "10.0.0.2"))
        await until(lambda: B in follower.addresses)
        server.oldest = server.version = server.version + 50
        server.end_watches()
        await until(lambda: follower.addresses == {B})
        assert server.num_lists == 2
        await until(lambda: follower.metric("stale") == 0)
        assert follower.metric("failures_total", reason="gone") == 1


async def test_version_that_is_gone_lists_again() -> None:
    async with FakeApiServer() as server:
        await outdated(server)


async def test_version_that_is_gone_inside_the_stream_lists_again() -> None:
    async with FakeApiServer(gone_as_event=True) as server:
        await outdated(server)


async def test_known_pods_are_kept_and_called_stale_while_the_server_is_away() -> None:
    async with FakeApiServer() as server:
        server.put(pod("a", "10.0.0.1"))
        async with following(server) as follower:
            await until(lambda: len(server.watches) == 1)
            assert follower.metric("stale") == 0
            await server.stop()
            await until(lambda: follower.metric("failures_total", reason="unreachable") >= 3)
            assert follower.metric("stale") == 1
            assert follower.addresses == {A}
            server.forget("a")
            server.put(pod("b", "10.0.0.2"))
            await server.start()
            await until(lambda: follower.addresses == {B})
            assert follower.metric("stale") == 0


async def test_watch_on_which_nothing_comes_counts_as_broken() -> None:
    async with FakeApiServer() as server, following(server, silence_s=0.05) as follower:
        await until(lambda: follower.metric("failures_total", reason="unreachable") >= 1)
        await until(lambda: server.num_lists >= 2)


async def test_refusal_is_told_and_tried_again() -> None:
    async with FakeApiServer(status=403) as server, following(server) as follower:
        await until(lambda: follower.metric("failures_total", reason="refused") >= 2)
        assert follower.seen == []
        server.status = 200
        await until(lambda: follower.seen == [frozenset()])


async def test_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop() -> None:
    async with FakeApiServer() as server, following(server):
        for count in range(1, 6):
            await until(lambda count=count: len(server.watches) == count)  # type: ignore[misc]
            server.end_watches()
        assert server.num_lists == 1


async def test_token_is_read_again_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with FakeApiServer() as server, following(server, token):
        await until(lambda: len(server.watches) == 1)
        token.unlink()
        server.break_watches()
        await asyncio.sleep(0)
        token.write_text("second\n")
        await until(lambda: server.num_lists == 2)
    assert server.tokens[0] == "Bearer first"
    assert server.tokens[-1] == "Bearer second"
