"""Mutual TLS between pods: sessions stand with it, and whoever has no certificate of the pods' authority is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc
from services.common.config import GatewayConfig
from services.common.options import ConfigError
from services.common.pod_tls import read_pod_tls
from tests.certificates import HAS_OPENSSL, make_authority, make_certificate
from tests.engine.tiny import make_worded_model
from tests.integration.cluster import Cluster

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="openssl makes the certificates")
NAME = "DNS:sluice-pods"


def options_of(folder: Path, name: str = "pod") -> dict[str, str]:
    return {
        "pod_tls_cert_file": str(folder / f"{name}.pem"),
        "pod_tls_key_file": str(folder / f"{name}.key"),
        "pod_tls_ca_file": str(folder / "ca.pem"),
    }


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pods' authority, and a certificate of theirs."""
    folder = make_authority(tmp_path_factory.mktemp("pods"))
    make_certificate(folder, "pod", NAME)
    return folder


@pytest.fixture(scope="module")
def cluster(pods: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """1P1D, every session of which is under mutual TLS."""
    model = make_worded_model(tmp_path_factory.mktemp("model"))
    flags = [word for name, path in options_of(pods).items() for word in (f"--{name.replace('_', '-')}", path)]
    logs = tmp_path_factory.mktemp("pod-tls-logs")
    with Cluster(model, logs, worker_options=flags, gateway_options=flags) as running:
        yield running


async def health(channel: grpc.aio.Channel) -> str:
    """What a worker's port says to whoever comes over this channel."""
    async with channel:
        try:
            asked = health_pb2.HealthCheckRequest()
            stub: Any = health_pb2_grpc.HealthStub(channel)
            await stub.Check(asked, timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "SERVING"


def worker_address(cluster: Cluster) -> str:
    arguments = cluster.processes["decode-0"].arguments
    return arguments[arguments.index("--advertise-address") + 1]


def test_requests_go_through_and_kv_crosses(cluster: Cluster) -> None:
    body = {"inputs": "Hello world", "parameters": {"max_new_tokens": 8, "ignore_eos": True}}
    answer = httpx.post(f"{cluster.url}/generate", json=body, timeout=200)
    assert answer.status_code == 200, answer.text
    assert answer.json()["count_output_tokens"] == 8


async def test_only_pods_are_let_in(cluster: Cluster, pods: Path, tmp_path: Path) -> None:
    strangers = make_authority(tmp_path / "strangers")
    make_certificate(strangers, "pod", NAME)
    (strangers / "ca.pem").write_bytes((pods / "ca.pem").read_bytes())  # it trusts the pods; they do not know it
    own, other = (read_pod_tls(GatewayConfig(**options_of(folder))) for folder in (pods, strangers))  # type: ignore[arg-type]
    assert own is not None
    assert other is not None
    address = worker_address(cluster)
    assert await health(own.channel(address)) == "SERVING"
    assert await health(other.channel(address)) == "UNAVAILABLE"
    assert await health(rpc.channel(address)) == "UNAVAILABLE"


async def test_a_worker_of_another_authority_or_name_is_not_believed(
    cluster: Cluster, pods: Path, tmp_path: Path
) -> None:
    strangers = make_authority(tmp_path / "strangers")
    trusting_others = options_of(pods) | {"pod_tls_ca_file": str(strangers / "ca.pem")}
    for wrong in (trusting_others, options_of(pods) | {"pod_tls_name": "somebody-else"}):
        tls = read_pod_tls(GatewayConfig(**wrong))  # type: ignore[arg-type]
        assert tls is not None
        assert await health(tls.channel(worker_address(cluster))) == "UNAVAILABLE"


@pytest.mark.parametrize("missing", ["pod_tls_cert_file", "pod_tls_key_file", "pod_tls_ca_file"])
def test_a_part_alone_is_refused(missing: str) -> None:
    given = {name: path for name, path in options_of(Path("/x")).items() if name != missing}
    with pytest.raises(ConfigError, match=f"^--{missing.replace('_', '-')} must be given too"):
        GatewayConfig(**given).check()  # type: ignore[arg-type]
