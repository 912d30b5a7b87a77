"""What breaks without being asked: the API server away, an engine that stands still."""

import time
from pathlib import Path

import pytest

from services.pd_master.pod_api import ApiAccess, ApiError, PodApi
from tests.cluster.conftest import LIVENESS_S, Release
from tests.cluster.kube import FOLDER, Kube
from tests.cluster.load import Prompt, steady_load
from tests.cluster.node import ApiServer, compact_etcd
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


async def test_the_real_api_server_says_gone_as_discovery_expects_it(
    kube: Kube, installed: Release, tmp_path: Path
) -> None:
    assert installed
    compact_etcd()
    token = tmp_path / "token"
    token.write_text(kube.token("sluice-pd-master"))
    access = ApiAccess("https://10.96.0.1", token, FOLDER / "pki" / "ca.crt")
    api = PodApi(access, kube.namespace, "app.kubernetes.io/name=sluice")
    try:
        assert len((await api.list()).pods) >= 3
        with pytest.raises(ApiError) as error:
            _ = [event async for event in api.watch("1", 5)]
        assert error.value.reason == "gone"
    finally:
        await api.close()


def test_wedged_engine_falls_out_of_service_and_is_restarted(
    kube: Kube, installed: Release, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    assert installed
    kube.scale("decode", 2)
    pod = kube.ready_pods("decode")[0]
    with steady_load(kube.service_url("sluice", 8000), expected) as load:
        pid = kube.engine_pid(pod)
        kube.kubectl("exec", pod, "--", "sh", "-c", f"kill -STOP {pid}")
        unready_s = kube.wait("unready", lambda: pod not in kube.ready_pods("decode"), 20)
        restarted_s = kube.wait("restarted", lambda: kube.restarts(pod) == 1, 150)
        kube.wait("both Ready", lambda: kube.settled("decode", 2), 150)
        load.wait_for(6)
    assert unready_s < 10
    assert unready_s + restarted_s < LIVENESS_S + ENDING_S
    assert load.faults == []
    kube.scale("decode", 1)
