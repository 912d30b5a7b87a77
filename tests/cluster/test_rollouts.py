"""Under a steady load of streams nothing that Kubernetes does in good order fails, repeats or cuts a single one."""

import pytest

from tests.cluster.conftest import Release
from tests.cluster.kube import Kube
from tests.cluster.load import Load, Prompt, steady_load

Expected = dict[Prompt, tuple[int, ...]]
URL_PORT = 8000


def url(kube: Kube) -> str:
    """The gateway's Service."""
    return kube.service_url("sluice", URL_PORT)


def check(load: Load) -> None:
    """Not one fault."""
    assert load.faults == [], f"{len(load.faults)} of {load.done} streams"


@pytest.mark.parametrize("key", ["decode", "prefill", "pdMaster"])
def test_rolling_upgrade_fails_no_stream(kube: Kube, installed: Release, expected: Expected, key: str) -> None:
    level = "debug" if installed.values.get(key, {}).get("logLevel") != "debug" else "info"
    with steady_load(url(kube), expected) as load:
        installed.upgrade(**{key: {"logLevel": level}})
        load.wait_for(3)
    check(load)


@pytest.mark.slow
@pytest.mark.parametrize("component", ["decode", "prefill"])
def test_scaling_up_and_down_fails_no_stream(
    kube: Kube, installed: Release, expected: Expected, component: str
) -> None:
    assert installed
    with steady_load(url(kube), expected) as load:
        kube.scale(component, 2)
        load.wait_for(6)
        kube.scale(component, 1)
        load.wait_for(3)
    check(load)


@pytest.mark.slow
@pytest.mark.parametrize("component", ["decode", "prefill", "pd-master"])
def test_pod_deleted_with_grace_fails_no_stream(
    kube: Kube, installed: Release, expected: Expected, component: str
) -> None:
    assert installed
    kube.scale(component, 2)
    with steady_load(url(kube), expected) as load:
        kube.kubectl("delete", "pod", kube.ready_pods(component)[0], "--wait=false")
        kube.wait("a new pod", lambda: kube.settled(component, 2))
        load.wait_for(3)
    check(load)
    kube.scale(component, 1)


@pytest.mark.slow
@pytest.mark.parametrize("component", ["decode", "prefill"])
def test_streams_of_a_pod_that_is_killed_go_on_elsewhere(
    kube: Kube, installed: Release, expected: Expected, component: str
) -> None:
    assert installed
    kube.scale(component, 2)
    with steady_load(url(kube), expected) as load:
        kube.kubectl("delete", "pod", kube.ready_pods(component)[0], "--grace-period=0", "--force")
        kube.wait("a new pod", lambda: kube.settled(component, 2))
        load.wait_for(3)
    check(load)
    kube.scale(component, 1)


@pytest.mark.slow
def test_killed_gateway_ends_only_its_own_sockets(kube: Kube, installed: Release, expected: Expected) -> None:
    assert installed
    kube.scale("pd-master", 2)
    with steady_load(url(kube), expected, at_once=4) as load:
        kube.kubectl("delete", "pod", kube.ready_pods("pd-master")[0], "--grace-period=0", "--force")
        kube.wait("a new pod", lambda: kube.settled("pd-master", 2))
        load.wait_for(4)
    assert len(load.faults) <= 4, "no more than the sockets it held"
    assert all("Error" in fault for fault in load.faults), "a broken connection, never wrong or repeated tokens"
    kube.scale("pd-master", 1)


@pytest.mark.slow
def test_mixed_workers_take_the_place_of_pairs_and_fail_no_stream(
    kube: Kube, installed: Release, expected: Expected
) -> None:
    with steady_load(url(kube), expected) as load:
        installed.upgrade(mixed={"enabled": True})
        load.wait_for(3)
        installed.upgrade(prefill={"enabled": False}, decode={"enabled": False})
        kube.wait("no pairs", lambda: not kube.pods("prefill") and not kube.pods("decode"))
        load.wait_for(3)
        installed.upgrade(prefill={"enabled": True}, decode={"enabled": True})
        installed.upgrade(mixed={"enabled": False})
        kube.wait("no mixed worker", lambda: not kube.pods("mixed"))
        load.wait_for(3)
    check(load)
