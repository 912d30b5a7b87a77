"""TLS on both ports, and certificates that gRPC clients have to show."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio

from services.common.config import GatewayConfig
from services.common.options import ConfigError
from services.pd_master.front import Front
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tls import read_tls
from sluice.v1 import gateway_pb2, gateway_pb2_grpc
from tests.fakes.dispatcher import FakeDispatcher, FakeModel, FakeModels

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a server's and a client's certificate from it."""
    folder = tmp_path_factory.mktemp("tls")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


def config_of(folder: Path, client_ca: str | None = None) -> GatewayConfig:
    cert, key = str(folder / "server.pem"), str(folder / "server.key")
    return GatewayConfig(
        host="127.0.0.1", http_port=0, grpc_port=0, drain_s=1, tls_cert_file=cert, tls_key_file=key,
        grpc_client_ca_file=client_ca,
    )  # fmt: skip


@pytest_asyncio.fixture(loop_scope="session")
async def front(tiny_model: Path, certificates: Path) -> AsyncIterator[Front]:
    config = config_of(certificates, str(certificates / "ca.pem"))
    dispatcher = FakeDispatcher(ModelText(tiny_model).vocabulary)
    front = Front(config, FakeModels(FakeModel("tiny", tiny_model)), dispatcher, GatewayMetrics())
    stop = asyncio.Event()
    served = asyncio.create_task(front.serve(stop))
    yield front
    stop.set()
    await served


async def test_https_answers_and_plain_http_does_not(front: Front, certificates: Path) -> None:
    trust = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    async with httpx.AsyncClient(verify=trust) as client:
        assert (await client.get(f"https://127.0.0.1:{front.http_port}/health")).status_code == 200
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://127.0.0.1:{front.http_port}/health")


async def list_models(front: Front, credentials: grpc.ChannelCredentials) -> list[str]:
    async with grpc.aio.secure_channel(f"127.0.0.1:{front.grpc_port}", credentials) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        answer = await stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=5)
        return [model.name for model in answer.models]


async def test_grpc_lets_in_only_clients_with_a_certificate(front: Front, certificates: Path) -> None:
    ca = (certificates / "ca.pem").read_bytes()
    key, cert = ((certificates / f"client.{kind}").read_bytes() for kind in ("key", "pem"))
    assert await list_models(front, grpc.ssl_channel_credentials(ca, key, cert)) == ["tiny"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await list_models(front, grpc.ssl_channel_credentials(ca))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_unusable_files_are_named(certificates: Path) -> None:
    with pytest.raises(ConfigError, match="--grpc-client-ca-file"):
        read_tls(config_of(certificates, "/nowhere"))
    swapped = GatewayConfig(tls_cert_file=str(certificates / "server.pem"), tls_key_file=str(certificates / "ca.key"))
    with pytest.raises(ConfigError, match="--tls-key-file"):
        read_tls(swapped)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("tls_cert_file", "--tls-key-file"),
        ("tls_key_file", "--tls-cert-file"),
        ("grpc_client_ca_file", "--tls-cert-file"),
    ],
)
def test_halves_are_refused(given: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"^{missing} must be given"):
        GatewayConfig(**{given: "x"}).check()  # type: ignore[arg-type]
