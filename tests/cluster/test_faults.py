"""What breaks without being asked: the API server away, an engine that stands still."""

import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.pd_master.kubernetes_discovery import DiscoveryMetrics, KubernetesDiscovery
from services.pd_master.pod_api import ApiAccess, PodApi
from tests.cluster.conftest import LIVENESS_S, Release
from tests.cluster.kube import FOLDER, Kube, is_ready
from tests.cluster.load import Prompt, steady_load
from tests.cluster.node import ApiServer
from tests.integration.cluster import http_get

pytestmark = pytest.mark.slow
AWAY_S = 60.0
ENDING_S = 30.0
"""From the liveness probe's last word to the container's new start: preStop, the engine's grace, the process's end."""


def sample(url: str, name: str) -> float:
    """A sample of the gateway's metrics, by its Service's address, which needs no API server."""
    text = http_get(f"{url}/metrics")[1]
    return float(next(line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name)))


def test_traffic_goes_on_while_the_api_server_is_away(
    kube: Kube, installed: Release, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    assert installed
    url, server = kube.service_url("sluice", 8000), ApiServer()
    with steady_load(url, expected) as load:
        server.stop()
        try:
            began, done = time.monotonic(), load.done
            kube.wait("stale is said", lambda: sample(url, "sluice_discovery_stale") == 1.0, 30)
            while time.monotonic() - began < AWAY_S:
                load.wait_for(1)
        finally:
            server.start()
        assert load.done - done >= 3
        kube.wait("stale no more", lambda: sample(url, "sluice_discovery_stale") == 0.0, 60)
        load.wait_for(3)
    assert load.faults == []
    kube.wait("all Ready again", lambda: all(kube.settled(name, 1) for name in ("prefill", "decode")))
    kube.wait("no ghosts", lambda: sample(url, 'sluice_discovery_pods{state="open"}') == 2.0, 20)
    assert sample(url, 'sluice_discovery_pods{state="withheld"}') == 0.0


GHOST = {"app": "watched"}


def address_of(kube: Kube, name: str) -> str:
    """A bare pod that discovery takes for a worker, and its address."""
    container = {"name": "pause", "image": "localhost/pause:1", "ports": [{"name": "grpc", "containerPort": 9001}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": GHOST}}
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(pod | {"spec": {"containers": [container]}}))
    kube.wait(f"{name} Ready", lambda: is_ready(kube.get("pods", "--field-selector", f"metadata.name={name}")[0]))
    return f"{kube.get('pods', '--field-selector', f'metadata.name={name}')[0]['status']['podIP']}:9001"


async def test_watch_that_the_real_api_server_ends_with_410_lists_again(
    kube: Kube, installed: Release, tmp_path: Path
) -> None:
    """An API server that came up later knows no version from before: here the gateway's discovery goes on from one."""
    assert installed
    (tmp_path / "token").write_text(kube.token("sluice-pd-master"))
    access = ApiAccess("https://10.96.0.1", tmp_path / "token", FOLDER / "pki" / "ca.crt")
    metrics = DiscoveryMetrics(CollectorRegistry())
    discovery = KubernetesDiscovery(PodApi(access, kube.namespace, "app=watched"), metrics)
    stays, goes = address_of(kube, "stays"), address_of(kube, "goes")
    async with aclosing(discovery.addresses()) as found:
        assert await anext(found) == {stays, goes}  # listed; the watch begins when the next set is asked for
        kube.kubectl("delete", "pod", "goes", "--grace-period=0", "--force")
        server = ApiServer()
        server.stop()
        server.start()
        assert await asyncio.wait_for(anext(found), 60) == {stays}
    assert metrics.failures.labels("gone")._value.get() == 1
    assert metrics.lists._value.get() == 2
    kube.kubectl("delete", "pod", "stays", "--grace-period=0", "--force")
    kube.wait("all Ready", lambda: all(kube.settled(name, 1) for name in ("prefill", "decode")))


def test_wedged_engine_falls_out_of_service_and_is_restarted(
    kube: Kube, installed: Release, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    assert installed
    kube.scale("decode", 2)
    pod = kube.ready_pods("decode")[0]
    with steady_load(kube.service_url("sluice", 8000), expected) as load:
        pid = kube.engine_pid(pod)
        kube.kubectl("exec", pod, "--", "sh", "-c", f"kill -STOP {pid}")
        stopped = time.monotonic()
        unready_s = kube.wait("unready", lambda: pod not in kube.ready_pods("decode"), 20)
        load.wait_for(6)
        assert kube.restarts(pod) == 0, "streams go on before the restart"
        kube.wait("restarted", lambda: kube.restarts(pod) == 1, 150)
        restarted_s = time.monotonic() - stopped
        kube.wait("both Ready", lambda: kube.settled("decode", 2), 150)
        load.wait_for(6)
    assert unready_s < 10
    assert load.slowest_s < restarted_s, "nobody waited for it"
    assert restarted_s < LIVENESS_S + ENDING_S
    assert load.faults == []
    kube.scale("decode", 1)
