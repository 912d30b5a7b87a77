"""What every pod of every preset has: no root, no rights, ports that policies name, budgets that add up."""

from typing import Any

import pytest

from tests.chart.objects import container, named, of_kind
from tools.check_chart import preset, preset_names, render

ROLES = ("pd-master", "prefill", "decode")


@pytest.fixture(scope="module", params=preset_names())
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The objects of one preset."""
    return render(preset(request.param))


def pod_spec(objects: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """The pod of a component."""
    spec: dict[str, Any] = named(objects, "Deployment", f"sluice-{role}")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("role", ROLES)
def test_no_pod_runs_as_root_or_may_become_it(objects: list[dict[str, Any]], role: str) -> None:
    spec, security = pod_spec(objects, role), container(objects, f"sluice-{role}")["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert security["capabilities"].get("add", ["IPC_LOCK"]) == ["IPC_LOCK"]


@pytest.mark.parametrize("role", ROLES)
def test_no_service_variables_which_would_be_unknown_options(objects: list[dict[str, Any]], role: str) -> None:
    assert pod_spec(objects, role)["enableServiceLinks"] is False


@pytest.mark.parametrize("role", ROLES)
def test_grace_period_holds_pre_stop_and_drain(objects: list[dict[str, Any]], role: str) -> None:
    pre_stop = float(container(objects, f"sluice-{role}")["lifecycle"]["preStop"]["exec"]["command"][1])
    drain = float(named(objects, "ConfigMap", f"sluice-{role}")["data"]["SLUICE_DRAIN_S"])
    assert pod_spec(objects, role)["terminationGracePeriodSeconds"] >= pre_stop + drain + 10


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_worker_has_no_token(objects: list[dict[str, Any]], role: str) -> None:
    assert pod_spec(objects, role)["automountServiceAccountToken"] is False


def test_gateway_may_list_and_watch_pods_and_nothing_else(objects: list[dict[str, Any]]) -> None:
    assert of_kind(objects, "ClusterRole") == []
    assert [role["rules"] for role in of_kind(objects, "Role")] == [
        [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    ]


def test_every_service_port_names_its_protocol(objects: list[dict[str, Any]]) -> None:
    ports = [port for service in of_kind(objects, "Service") for port in service["spec"]["ports"]]
    assert ports
    assert all(port["protocol"] == "TCP" for port in ports)


def test_disruption_budgets_are_on(objects: list[dict[str, Any]]) -> None:
    assert len(of_kind(objects, "PodDisruptionBudget")) == len(ROLES)


def test_policies_open_the_pods_ports_and_the_transfer_range_and_no_other(objects: list[dict[str, Any]]) -> None:
    for role in ROLES:
        rules = named(objects, "NetworkPolicy", f"sluice-{role}")["spec"]["ingress"]
        opened = {port["port"] for rule in rules for port in rule["ports"]}
        declared = {port["containerPort"] for port in container(objects, f"sluice-{role}")["ports"]}
        transfer = {port for port in declared | opened if port >= 9100}
        assert opened - transfer == declared - transfer, role
        assert role == "decode" or opened & transfer == set(), role
        if role == "decode":
            assert declared <= opened
            assert set(range(9200, 9216)) <= opened


def test_prefill_may_not_be_reached_by_decode(objects: list[dict[str, Any]]) -> None:
    rules = named(objects, "NetworkPolicy", "sluice-prefill")["spec"]["ingress"]
    peers = [peer.get("podSelector", {}).get("matchLabels", {}) for rule in rules for peer in rule["from"]]
    components = {labels["app.kubernetes.io/component"] for labels in peers if labels}
    assert components == {"pd-master"}
