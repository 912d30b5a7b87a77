"""Single values and what they make of the objects."""

from typing import Any

import pytest

from tests.chart.objects import container, named, of_kind
from tools.check_chart import preset, render


def pod(values: dict[str, Any], role: str = "decode") -> dict[str, Any]:
    """The pod template of a component."""
    template: dict[str, Any] = named(render(values), "Deployment", f"sluice-{role}")["spec"]["template"]
    return template


def volumes(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The volumes of a worker by name."""
    return {one["name"]: one for one in pod(values)["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ({"source": "hub", "hub": {"id": "a/b"}}, "a/b"),
        ({"source": "pvc", "pvc": {"claimName": "c", "path": "deep/m"}}, "/models/deep/m"),
        ({"source": "pvc", "pvc": {"claimName": "c"}}, "/models"),
        ({"source": "hostPath", "hostPath": {"path": "/data/m"}}, "/models/m"),
        ({"source": "image", "image": {"reference": "r:1", "path": "/"}}, "/models"),
    ],
)
def test_model_is_looked_for_where_it_is_mounted(model: dict[str, Any], path: str) -> None:
    objects = render({"model": model})
    assert named(objects, "ConfigMap", "sluice-decode")["data"]["SLUICE_MODEL"] == path
    mounts = {one["name"]: one["mountPath"] for one in container(objects, "sluice-decode")["volumeMounts"]}
    assert "hub" in mounts if model["source"] == "hub" else path.startswith(mounts["model"])


def test_hub_cache_is_what_was_chosen() -> None:
    assert "emptyDir" in volumes({})["hub"]
    claim = volumes({"model": {"hub": {"cache": "pvc", "claimName": "c"}}})["hub"]
    assert claim["persistentVolumeClaim"] == {"claimName": "c"}


def test_changed_option_replaces_the_pods_of_its_component_alone() -> None:
    def checksum(values: dict[str, Any], role: str) -> str:
        return str(pod(values, role)["metadata"]["annotations"]["checksum/config"])

    changed = {"decode": {"maxRunningRequests": 3}}
    assert checksum(changed, "decode") != checksum({}, "decode")
    assert checksum(changed, "prefill") == checksum({}, "prefill")


def test_hugging_face_token_comes_from_a_secret() -> None:
    objects = render({"huggingFace": {"token": "hf_x"}})
    assert named(objects, "Secret", "sluice-hugging-face")["data"] == {"token": "aGZfeA=="}
    env = {one["name"]: one for one in container(objects, "sluice-prefill")["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "sluice-hugging-face", "key": "token"}


def test_api_keys_are_a_secret_that_the_gateway_reads() -> None:
    objects = render({"pdMaster": {"apiKeys": {"values": {"alice": "k" * 16}}}})
    assert named(objects, "Secret", "sluice-api-keys")["stringData"] == {"api-keys": f"alice {'k' * 16}\n"}
    assert (
        named(objects, "ConfigMap", "sluice-pd-master")["data"]["SLUICE_API_KEYS_FILE"] == "/etc/sluice/api-keys/keys"
    )
    mounts = {one["name"]: one["mountPath"] for one in container(objects, "sluice-pd-master")["volumeMounts"]}
    assert mounts["api-keys"] == "/etc/sluice/api-keys"
    assert "SLUICE_API_KEYS_FILE" not in named(render({}), "ConfigMap", "sluice-pd-master")["data"]


def test_certificates_of_a_secret_are_served_and_probed() -> None:
    gateway = pod({"pdMaster": {"tls": {"secretName": "web", "grpcClientCaKey": "ca.crt"}}}, "pd-master")["spec"]
    main = gateway["containers"][0]
    assert {main[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "readiness", "liveness")} == {"HTTPS"}
    assert {"name": "tls", "mountPath": "/etc/sluice/tls", "readOnly": True} in main["volumeMounts"]
    assert {"name": "tls", "secret": {"secretName": "web", "defaultMode": 0o440}} in gateway["volumes"]
    plain = pod({}, "pd-master")["spec"]
    assert "scheme" not in plain["containers"][0]["readinessProbe"]["httpGet"]
    assert "tls" not in {one["name"] for one in plain["volumes"]}


@pytest.mark.parametrize("role", ["pd-master", "prefill", "decode"])
def test_every_pod_gets_the_certificate_that_pods_show_each_other(role: str) -> None:
    values = {"podTls": {"secretName": "pods", "name": "our-pods"}}
    data = named(render(values), "ConfigMap", f"sluice-{role}")["data"]
    assert data["SLUICE_POD_TLS_CA_FILE"] == "/etc/sluice/pod-tls/ca.crt"
    assert data["SLUICE_POD_TLS_NAME"] == "our-pods"
    spec = pod(values, role)["spec"]
    assert {"name": "pod-tls", "secret": {"secretName": "pods", "defaultMode": 0o440}} in spec["volumes"]
    assert "/etc/sluice/pod-tls" in {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    assert "SLUICE_POD_TLS_NAME" not in named(render({}), "ConfigMap", f"sluice-{role}")["data"]


def test_autoscaler_owns_the_replicas() -> None:
    objects = render(preset("2p4d-rdma"))
    assert "replicas" not in named(objects, "Deployment", "sluice-decode")["spec"]
    assert named(objects, "Deployment", "sluice-prefill")["spec"]["replicas"] == 2
    assert {one["metadata"]["name"] for one in of_kind(objects, "HorizontalPodAutoscaler")} == {
        "sluice-decode", "sluice-pd-master",
    }  # fmt: skip


def test_role_gives_of_a_block_only_what_differs() -> None:
    shared = {"rdma": {"resource": "rdma/a"}, "nodeSelector": {"pool": "a"}, "rollout": {"maxSurge": 2}}
    of_decode = {
        "gpu": {"count": 2}, "rdma": {"enabled": True}, "nodeSelector": {"zone": "z"}, "rollout": {"maxUnavailable": 1},
        "resources": {"limits": {"memory": "8Gi"}}, "autoscaling": {"enabled": True, "maxReplicas": 3},
        "prefixCache": False,
    }  # fmt: skip
    objects = render({"worker": shared, "decode": of_decode})
    worker, deployment = container(objects, "sluice-decode"), named(objects, "Deployment", "sluice-decode")["spec"]
    assert worker["resources"] == {
        "requests": {"cpu": "4", "memory": "32Gi", "nvidia.com/gpu": "2", "rdma/a": "1"},
        "limits": {"memory": "8Gi", "nvidia.com/gpu": "2", "rdma/a": "1"},
    }
    assert worker["command"] == ["python", "-m", "services.cli.rdma_gid", "sluice"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 1}
    assert deployment["template"]["spec"]["nodeSelector"] == {"zone": "z"}
    scaler = named(objects, "HorizontalPodAutoscaler", "sluice-decode")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 3)
    assert scaler["metrics"][0]["pods"]["target"]["averageValue"] == "800m"
    data = {role: named(objects, "ConfigMap", f"sluice-{role}")["data"] for role in ("prefill", "decode")}
    assert {role: found["SLUICE_PREFIX_CACHE"] for role, found in data.items()} == {
        "prefill": "true", "decode": "false",
    }  # fmt: skip


def test_rdma_pod_gets_its_device_and_may_pin_memory_and_finds_its_gid() -> None:
    worker = container(render(preset("2p4d-rdma")), "sluice-prefill")
    assert worker["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"
    assert worker["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert worker["command"] == ["python", "-m", "services.cli.rdma_gid", "sluice"]


def test_rdma_claim_of_dra_stands_in_pod_and_container() -> None:
    values = {"worker": {"rdma": {"enabled": True, "claimTemplate": "nic"}}}
    spec = pod(values)["spec"]
    assert spec["resourceClaims"] == [{"name": "rdma", "resourceClaimTemplateName": "nic"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "rdma"}]


def test_pinned_gid_index_is_handed_over_as_it_is() -> None:
    values = {"worker": {"rdma": {"enabled": True, "resource": "rdma/a", "gidIndex": 3}}}
    worker = pod(values)["spec"]["containers"][0]
    assert {"name": "UCX_IB_GID_INDEX", "value": "3"} in worker["env"]
    assert "command" not in worker


def test_priority_class_that_is_made_is_used() -> None:
    objects = render({"priorityClass": {"create": True, "name": "p"}})
    assert [one["metadata"]["name"] for one in of_kind(objects, "PriorityClass")] == ["p"]
    assert named(objects, "Deployment", "sluice-decode")["spec"]["template"]["spec"]["priorityClassName"] == "p"


def test_egress_is_bounded_when_asked() -> None:
    policy = named(render({"networkPolicy": {"egress": True}}), "NetworkPolicy", "sluice-pd-master")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 6443, 9001}


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://otel:4318", 4318),
        ("https://otel.example.com", 443),
        ("http://otel/base", 80),
        ("http://[fd00::1]:99", 99),
    ],
)
def test_bounded_egress_lets_traces_out(endpoint: str, port: int) -> None:
    traced = {"otlpEndpoint": endpoint}
    objects = render({"networkPolicy": {"egress": True}, "pdMaster": traced, "worker": traced})
    for component in ("pd-master", "prefill", "decode"):
        rules = named(objects, "NetworkPolicy", f"sluice-{component}")["spec"]["egress"]
        assert {"ports": [{"port": port, "protocol": "TCP"}]} in rules
        assert named(objects, "ConfigMap", f"sluice-{component}")["data"]["SLUICE_OTLP_ENDPOINT"] == endpoint


def test_mixed_workers_stand_beside_pairs_or_alone() -> None:
    assert {one["metadata"]["name"] for one in of_kind(render({}), "Deployment")} == {
        "sluice-pd-master", "sluice-prefill", "sluice-decode",
    }  # fmt: skip
    alone = {"prefill": {"enabled": False}, "decode": {"enabled": False}, "mixed": {"enabled": True, "replicas": 3}}
    objects = render(alone)
    assert {one["metadata"]["name"] for one in of_kind(objects, "Deployment")} == {"sluice-pd-master", "sluice-mixed"}
    assert {one["metadata"]["name"] for one in of_kind(objects, "NetworkPolicy")} == {
        "sluice-pd-master", "sluice-mixed",
    }  # fmt: skip
    worker = container(objects, "sluice-mixed")
    assert worker["args"] == ["mixed"]
    assert {port["containerPort"] for port in worker["ports"]} == {9000, 9001}
    assert len(of_kind(render({"mixed": {"enabled": True}}), "Deployment")) == 4


def test_gateway_looks_for_workers_of_all_roles() -> None:
    selector = named(render({}), "ConfigMap", "sluice-pd-master")["data"]["SLUICE_WORKER_SELECTOR"]
    assert selector.endswith("component in (prefill,decode,mixed)")


def test_clients_that_are_named_are_the_only_ones() -> None:
    clients = [{"podSelector": {"matchLabels": {"app": "web"}}}]
    rules = named(render({"networkPolicy": {"clients": clients}}), "NetworkPolicy", "sluice-pd-master")["spec"][
        "ingress"
    ]
    assert all("from" in rule for rule in rules)
    assert clients[0] in rules[0]["from"]
