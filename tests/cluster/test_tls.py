"""Sluice under TLS on a real cluster: HTTPS and gRPC for clients, mutual TLS between pods, certificates from Secrets.

Whoever comes in plain text or without a certificate is refused, and a renewed Secret is taken by the pods that run.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common import rpc
from services.common.certificates import Certificates, Files
from services.common.pod_tls import PodTls
from sluice.v1 import gateway_pb2, gateway_pb2_grpc, types_pb2
from tests.certificates import HAS_OPENSSL, make_authority, make_certificate
from tests.cluster.conftest import Release, values
from tests.cluster.helm import helm
from tests.cluster.kube import Kube
from tests.cluster.load import OUTPUT_TOKENS, Prompt
from tests.integration.client import Answer, stream
from tests.integration.cluster import http_get

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_OPENSSL, reason="openssl makes the certificates")]
NAMESPACE = "secure"
WEB, PODS = "sluice.example.com", "sluice-pods"
"""The names that certificates bear."""
COMPONENTS = ("pd-master", "prefill", "decode")
RENEWED_S = 180
"""The kubelet looks at Secrets about once a minute."""


class Secure(NamedTuple):
    """A release whose certificates the test made."""

    kube: Kube
    release: Release
    web: Path
    """The authority of the gateway's and the clients' certificates."""
    pods: Path
    """The authority of the pods' certificates."""

    def address(self, component: str, port: int) -> str:
        """host:port of a component's first pod."""
        return f"{self.kube.pods(component)[0]['status']['podIP']}:{port}"

    def service(self, port: int) -> str:
        """host:port of the gateway's Service."""
        return self.kube.service_url("sluice", port).removeprefix("http://")

    def client(self) -> httpx.AsyncClient:
        """Trusts the authority alone, and takes only a server of the right name, whatever its address is."""

        async def expect_name(request: httpx.Request) -> None:
            request.extensions["sni_hostname"] = WEB

        trust = ssl.create_default_context(cafile=str(self.web / "ca.pem"))
        hooks: dict[str, list[Callable[..., Any]]] = {"request": [expect_name]}
        url = f"https://{self.service(8000)}"
        return httpx.AsyncClient(base_url=url, verify=trust, trust_env=False, event_hooks=hooks)


def make_secret(kube: Kube, name: str, authority: Path, names: str) -> None:
    """A Secret as cert-manager keeps them, with a certificate made now; one that is there is renewed."""
    make_certificate(authority, "server", names)
    files = {"tls.crt": "server.pem", "tls.key": "server.key", "ca.crt": "ca.pem"}
    data = {entry: base64.b64encode((authority / file).read_bytes()).decode() for entry, file in files.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": name}}
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(secret | {"data": data}))


def renew(secure: Secure) -> None:
    """Both Secrets."""
    make_secret(secure.kube, "web-tls", secure.web, f"DNS:{WEB}")
    make_secret(secure.kube, "pod-tls", secure.pods, f"DNS:{PODS}")


@pytest.fixture(scope="module")
def secure(kube: Kube, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    """Sluice in a namespace of its own, everything that can be under TLS."""
    folder, there = tmp_path_factory.mktemp("tls"), Kube(NAMESPACE)
    of_test = values(model_dir)
    of_test["pdMaster"]["tls"] = {"secretName": "web-tls", "grpcClientCaKey": "ca.crt"}
    of_test["podTls"] = {"secretName": "pod-tls"}
    made = Secure(there, Release(there, of_test), make_authority(folder / "web"), make_authority(folder / "pods"))
    make_certificate(made.web, "client", "DNS:a-client")
    kube.kubectl("create", "namespace", NAMESPACE)
    renew(made)
    try:
        made.release.install()
        yield made
    finally:
        helm("uninstall", namespace=NAMESPACE, wait="watcher", timeout=120)


def certificate_of(folder: Path, name: str) -> Certificates:
    """NAME's certificate in a folder, which trusts the folder's authority."""
    files = Files(str(folder / f"{name}.pem"), str(folder / f"{name}.key"), str(folder / "ca.pem"), ("", "", ""))
    return Certificates(files)


def without_certificate(authority: Path) -> grpc.ChannelCredentials:
    """TLS as a browser does it."""
    return grpc.ssl_channel_credentials((authority / "ca.pem").read_bytes())


async def over_https(secure: Secure, prompt: Prompt) -> Answer:
    """One stream through the Service."""
    async with secure.client() as client:
        return await stream(client, prompt, OUTPUT_TOKENS)


async def over_grpc(secure: Secure, prompt: Prompt, credentials: grpc.ChannelCredentials | None) -> list[int] | str:
    """One stream through the Service, plain text without credentials: its output ids, or the code it failed with."""
    request = gateway_pb2.GenerateRequest(
        token_ids=gateway_pb2.TokenIds(ids=prompt),
        sampling=types_pb2.SamplingParams(temperature=0),
        stop=types_pb2.StopParams(max_new_tokens=OUTPUT_TOKENS),
    )
    try:
        async with rpc.channel(secure.service(8001), credentials, WEB) as channel:
            stub: Any = gateway_pb2_grpc.GatewayServiceStub(channel)
            deltas = [delta async for answer in stub.Generate(request, timeout=60) for delta in answer.deltas]
            return [id_ for delta in deltas for id_ in delta.token_ids]
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def health(channel: grpc.aio.Channel) -> str:
    """What a worker says to whoever comes over this channel: SERVING, or the code of the refusal."""
    async with channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "SERVING"


def shown(address: str) -> str:
    """The certificate that a server shows."""
    host, _, port = address.partition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=10)


def test_pods_become_ready_over_tls_and_helm_test_passes(secure: Secure) -> None:
    assert [len(secure.kube.ready_pods(component)) for component in COMPONENTS] == [1, 1, 1]
    (gateway,) = secure.kube.pods("pd-master")
    probes = [gateway["spec"]["containers"][0][f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["httpGet"]["scheme"] for probe in probes} == {"HTTPS"}
    secure.release.test()


async def test_streams_over_https_and_grpc_equal_the_oracle(
    secure: Secure, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    credentials = certificate_of(secure.web, "client").channel_credentials()
    for prompt, ids in list(expected.items())[:3]:
        answer = await over_https(secure, prompt)
        assert not answer.error
        assert answer.token_ids == list(ids)
        assert await over_grpc(secure, prompt, credentials) == list(ids)


async def test_clients_in_plain_text_or_without_a_certificate_are_refused(
    secure: Secure, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    prompt = next(iter(expected))
    assert http_get(f"http://{secure.service(8000)}/health")[0] == 0
    assert await over_grpc(secure, prompt, None) == "UNAVAILABLE"
    assert await over_grpc(secure, prompt, without_certificate(secure.web)) == "UNAVAILABLE"


@pytest.mark.parametrize("component", ["prefill", "decode"])
async def test_workers_speak_to_pods_alone(secure: Secure, component: str) -> None:
    address = secure.address(component, 9001)
    strange = certificate_of(secure.web, "client").channel_credentials()
    assert await health(PodTls(certificate_of(secure.pods, "server"), PODS).channel(address)) == "SERVING"
    assert await health(rpc.channel(address)) == "UNAVAILABLE"
    assert await health(rpc.channel(address, without_certificate(secure.pods), PODS)) == "UNAVAILABLE"
    assert await health(rpc.channel(address, strange, PODS)) == "UNAVAILABLE"


def test_renewed_secrets_are_taken_by_the_pods_that_run(
    secure: Secure, expected: dict[Prompt, tuple[int, ...]]
) -> None:
    kube = secure.kube
    ports = (("pd-master", 8000), ("pd-master", 8001), ("prefill", 9001), ("decode", 9001))
    before = {secure.address(*port): shown(secure.address(*port)) for port in ports}
    names = [kube.ready_pods(component) for component in COMPONENTS]
    renew(secure)
    kube.wait("all show the new", lambda: not any(shown(one) == old for one, old in before.items()), RENEWED_S)
    # A worker that comes now meets the others with the new certificates.
    kube.scale("decode", 2)
    kube.wait("both pairs proven", lambda: asyncio.run(proven_pairs(secure)) == 2.0, 60)
    prompt, ids = next(iter(expected.items()))
    assert asyncio.run(over_https(secure, prompt)).token_ids == list(ids)
    now = [kube.ready_pods(component) for component in COMPONENTS]
    assert all(set(old) <= set(new) for old, new in zip(names, now, strict=True))
    assert [kube.restarts(pod) for pods in now for pod in pods] == [0, 0, 0, 0]


async def proven_pairs(secure: Secure) -> float:
    """From the gateway's metrics."""
    async with secure.client() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("sluice_gateway_proven_pairs"))
