"""Certificates of the front: TLS for both servers, and whose clients gRPC lets in."""

from services.common.certificates import Certificates, Files
from services.common.config import GatewayConfig

_OPTIONS = ("--tls-cert-file", "--tls-key-file", "--grpc-client-ca-file")


def read_tls(config: GatewayConfig) -> Certificates | None:
    """None where the servers speak plain text. Raises ConfigError naming the option whose file is unusable."""
    cert, key = config.tls_cert_file, config.tls_key_file
    if cert is None or key is None:
        return None
    return Certificates(Files(cert, key, config.grpc_client_ca_file, _OPTIONS))
