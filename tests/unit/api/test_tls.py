"""TLS on both ports, and certificates that gRPC clients have to show."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import httpx
import pytest
import pytest_asyncio

from services.common import rpc
from services.common.config import GatewayConfig
from services.common.options import ConfigError
from services.pd_master.api.http import HttpCall
from services.pd_master.front import Front
from services.pd_master.http_server import Address, HttpServer
from services.pd_master.metrics import GatewayMetrics
from services.pd_master.model_text import ModelText
from services.pd_master.tls import read_tls
from sluice.v1 import gateway_pb2, gateway_pb2_grpc
from tests.certificates import HAS_OPENSSL, make_authority, make_certificate
from tests.fakes.dispatcher import FakeDispatcher, FakeModel, FakeModels

pytestmark = pytest.mark.skipif(not HAS_OPENSSL, reason="openssl makes the certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a server's and a client's certificate from it."""
    folder = make_authority(tmp_path_factory.mktemp("tls"))
    for name in ("server", "client"):
        make_certificate(folder, name)
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
    async with httpx.AsyncClient(verify=trust, timeout=60) as client:
        assert (await client.get(f"https://127.0.0.1:{front.http_port}/health")).status_code == 200
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://127.0.0.1:{front.http_port}/health")


async def list_models(front: Front, credentials: grpc.ChannelCredentials) -> list[str]:
    async with grpc.aio.secure_channel(f"127.0.0.1:{front.grpc_port}", credentials) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        answer = await stub.ListModels(gateway_pb2.ListModelsRequest(), timeout=60)
        return [model.name for model in answer.models]


async def test_grpc_lets_in_only_clients_with_a_certificate(front: Front, certificates: Path) -> None:
    ca = (certificates / "ca.pem").read_bytes()
    key, cert = ((certificates / f"client.{kind}").read_bytes() for kind in ("key", "pem"))
    assert await list_models(front, grpc.ssl_channel_credentials(ca, key, cert)) == ["tiny"]
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await list_models(front, grpc.ssl_channel_credentials(ca))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def shown(port: int) -> str:
    """The certificate that a server shows."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=60)


def test_a_renewal_that_does_not_fit_its_key_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_authority(tmp_path / "tls")
    make_certificate(folder, "server")
    make_certificate(folder, "other")
    tls = read_tls(config_of(folder))
    assert tls is not None
    before = tls.current()
    (folder / "other.pem").replace(folder / "server.pem")
    assert tls.current() is before
    assert "not used" in caplog.text
    (folder / "other.key").replace(folder / "server.key")
    assert tls.current().cert == (folder / "server.pem").read_bytes() != before.cert


@pytest.mark.parametrize("gone", ["server.pem", "server.key"])
def test_files_that_vanish_while_they_are_read_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    folder = make_authority(tmp_path / "tls")
    make_certificate(folder, "server")
    tls = read_tls(config_of(folder))
    assert tls is not None
    before = tls.current()
    make_certificate(folder, "server")
    read_bytes = Path.read_bytes

    def vanished(path: Path) -> bytes:
        if path.name == gone:
            raise FileNotFoundError(path)
        return read_bytes(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", vanished)
        assert tls.current() is before
    assert "not used" in caplog.text
    assert tls.current().cert == (folder / "server.pem").read_bytes() != before.cert


async def nobody(call: HttpCall) -> None:
    """Is never called."""
    raise AssertionError(call.path)


@pytest.mark.parametrize("error", [ssl.SSLError("mismatch"), FileNotFoundError("gone")])
async def test_a_renewal_that_fails_to_load_is_tried_again(tmp_path: Path, error: OSError) -> None:
    folder = make_authority(tmp_path / "tls")
    make_certificate(folder, "server")
    tls = read_tls(config_of(folder))
    assert tls is not None
    http = HttpServer(nobody, Address("127.0.0.1", 0), drain_s=1, stall_s=5, tls=tls, renew_s=0.01)
    served = asyncio.create_task(http.serve())
    await http.started()
    loaded = asyncio.Event()
    failures = [error, error]

    class Context:
        """The server's, whose next two loads fail."""

        def load_cert_chain(self, cert: str, key: str) -> None:
            assert (cert, key) == (str(folder / "server.pem"), str(folder / "server.key"))
            if failures:
                raise failures.pop()
            loaded.set()

    http._context = Context()  # type: ignore[assignment]
    make_certificate(folder, "server")
    await asyncio.wait_for(loaded.wait(), 60)
    http.stop()
    await served


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    folder = make_authority(tmp_path / "tls")
    make_certificate(folder, "server")
    tls = read_tls(config_of(folder))
    assert tls is not None

    http = HttpServer(nobody, Address("127.0.0.1", 0), drain_s=1, stall_s=5, tls=tls, renew_s=0.05)
    grpc_server = rpc.server()
    ports = [http.port, rpc.bind(grpc_server, "127.0.0.1:0", tls.server_credentials())]
    await grpc_server.start()
    served = asyncio.create_task(http.serve())
    await http.started()
    first = [await shown(port) for port in ports]
    make_certificate(folder, "server")
    async with asyncio.timeout(60):
        while any(new in first for new in [await shown(port) for port in ports]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    http.stop()
    await served
    await grpc_server.stop(0)


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
