"""Wrong values are refused before anything is installed, with a message that names the key and what is wrong."""

from typing import Any

import helm_python
import pytest

from tools.check_chart import CHART

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    # what no schema knows
    ({"replicaCount": 2}, ["replicaCount", "not allowed"]),
    ({"pdMaster": {"replica": 2}}, ["/pdMaster", "replica", "not allowed"]),
    ({"decode": {"maxRunningRequest": 9}}, ["/decode", "maxRunningRequest", "not allowed"]),
    ({"worker": {"rdma": {"device": "mlx5_0"}}}, ["/worker/rdma", "device", "not allowed"]),
    # wrong types, bounds, choices
    ({"pdMaster": {"replicas": "two"}}, ["/pdMaster/replicas", "string", "integer"]),
    ({"pdMaster": {"replicas": -1}}, ["/pdMaster/replicas", "minimum"]),
    ({"prefill": {"kvMemoryFraction": 1.5}}, ["/prefill/kvMemoryFraction", "maximum"]),
    ({"worker": {"chunkTokens": 0}}, ["/worker/chunkTokens", "minimum"]),
    ({"worker": {"requireLane": "infiniband"}}, ["/worker/requireLane", "rdma"]),
    ({"worker": {"backend": "gpu"}}, ["/worker/backend", "cuda"]),
    ({"model": {"dtype": "fp16"}}, ["/model/dtype", "float16"]),
    ({"model": {"source": "s3"}}, ["/model/source", "hostPath"]),
    ({"model": {"hub": {"id": "Qwen3-8B"}}}, ["/model/hub/id", "pattern"]),
    ({"image": {"worker": {"tag": "latest"}}}, ["/image/worker/tag"]),
    ({"image": {"gateway": {"digest": "abc"}}}, ["/image/gateway/digest", "sha256"]),
    ({"image": {"pullPolicy": "Sometimes"}}, ["/image/pullPolicy", "IfNotPresent"]),
    ({"ports": {"http": 70000}}, ["/ports/http", "maximum"]),
    ({"worker": {"shmSize": "8 GB"}}, ["/worker/shmSize", "pattern"]),
    ({"pdMaster": {"service": {"type": "Ingress"}}}, ["/pdMaster/service/type", "ClusterIP"]),
    ({"worker": {"rollout": {"maxSurge": "a few"}}}, ["/worker/rollout/maxSurge"]),
    # what does not fit together
    (
        {"pdMaster": {"terminationGracePeriodSeconds": 100}},
        ["pdMaster.terminationGracePeriodSeconds: 100 is too short", "preStopSeconds 10 + drainS 120 = 130"],
    ),
    (
        {"decode": {"drainS": 600, "terminationGracePeriodSeconds": 602}},
        ["decode.terminationGracePeriodSeconds: 602 is too short", "= 602"],
    ),
    ({"prefill": {"tp": 4, "gpu": {"count": 2, "resource": "nvidia.com/gpu", "runtimeClassName": ""}}},
     ["prefill.tp: 4 does not divide gpu.count 2"]),
    ({"worker": {"rdma": {"enabled": True}}}, ["prefill.rdma.resource: must name the device plugin's resource"]),
    ({"worker": {"rdma": {"enabled": True, "resource": "rdma/a", "claimTemplate": "b"}}}, ["not both"]),
    ({"worker": {"requireLane": "rdma"}}, ["prefill.requireLane: rdma can never be met"]),
    ({"worker": {"backend": "cuda", "gpu": {"count": 0}}}, ["prefill.backend: cuda needs a card"]),
    ({"worker": {"transferDepth": 9}}, ["prefill.transferDepth: 9 is more than transferPages 8"]),
    ({"model": {"source": "pvc"}}, ["model.pvc.claimName: must name a claim when model.source is pvc"]),
    ({"model": {"source": "hostPath"}}, ["model.hostPath.path: must be a folder"]),
    ({"model": {"source": "image"}}, ["model.image.reference: must name an image"]),
    ({"model": {"hub": {"cache": "pvc"}}}, ["model.hub.claimName: must name a claim"]),
    ({"huggingFace": {"token": "a", "existingSecret": "b"}}, ["huggingFace: give token or existingSecret, not both"]),
    (
        {"pdMaster": {"apiKeys": {"values": {"a": "b" * 16}, "existingSecret": "c"}}},
        ["pdMaster.apiKeys: give values or existingSecret, not both"],
    ),
    ({"pdMaster": {"apiKeys": {"values": {"a": "short"}}}}, ["/pdMaster/apiKeys/values/a", "minLength"]),
    ({"pdMaster": {"tls": {"grpcClientCaKey": "ca.crt"}}}, ["pdMaster.tls.secretName: must name a Secret"]),
    ({"podTls": {"certKey": "a/b"}}, ["/podTls/certKey", "pattern"]),
    ({"worker": {"livenessBudgetSeconds": 65}}, ["livenessBudgetSeconds: 65 must be more than 3 x engineStallS 60"]),
    ({"worker": {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}}, ["could never replace a pod"]),
    ({"pdMaster": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, ["minReplicas: 9 is more than maxReplicas 8"]),
    ({"decode": {"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 2, "targetDemandRatio": "1"},
                 "keda": {"enabled": True, "serverAddress": "http://p"}}}, ["decode: keda and autoscaling"]),
    ({"worker": {"keda": {"minReplicas": 0}}}, ["/worker/keda/minReplicas", "minimum"]),
    ({"worker": {"keda": {"threshold": "80%"}}}, ["/worker/keda/threshold", "pattern"]),
    ({"worker": {"hostNetwork": True}, "networkPolicy": {"egress": True}}, ["prefill.hostNetwork: does not go with"]),
    ({"worker": {"ucxTls": "tcp,self", "requireLane": "cuda_ipc"}}, ["prefill.ucxTls: tcp,self leaves out what"]),
    ({"worker": {"ucxTls": "tcp", "requireLane": "rdma", "rdma": {"enabled": True, "resource": "rdma/a"}}},
     ["prefill.ucxTls: tcp leaves out what requireLane rdma needs"]),
    ({"pdMaster": {"service": {"externalTrafficPolicy": "Local"}}}, ["externalTrafficPolicy: Local needs"]),
    ({"worker": {"keda": {"enabled": True}}}, ["keda.serverAddress: must be Prometheus' address"]),
    ({"ports": {"grpc": 9000}}, ["ports.http: 9000 is ports.grpc too"]),
    ({"ports": {"kv": 9205}}, ["ports.kv: 9205 lies within ports.kvData"]),
    ({"ports": {"kv": 8998}, "worker": {"tp": 4, "gpu": {"count": 4}}}, ["ports.http: 9000 is a port of the KV"]),
    ({"worker": {"enabled": True}}, ["/worker", "enabled", "not allowed"]),
    ({"decode": {"enabled": False}}, ["decode.enabled: false does not go with prefill.enabled true"]),
    ({"prefill": {"enabled": False}, "decode": {"enabled": False}}, ["mixed.enabled: must be true"]),
    ({"mixed": {"enabled": True, "tp": 3}}, ["mixed.tp: 3 does not divide gpu.count 1"]),
    ({"priorityClass": {"create": True}}, ["priorityClass.name: must be given"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def chart() -> helm_python.Chart:
    """The chart, loaded once."""
    return helm_python.Chart.load(CHART)


@pytest.mark.parametrize(("values", "words"), WRONG, ids=[words[0][:40] for _, words in WRONG])
def test_wrong_values_are_refused_with_their_key(
    chart: helm_python.Chart, values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises((helm_python.HelmValuesError, helm_python.HelmRenderError)) as refused:
        chart.render(values, name="sluice", namespace="serving")
    message = str(refused.value)
    assert [word for word in words if word not in message] == [], message
