"""Certificates of the front: TLS for both servers, and whose clients gRPC lets in."""

import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from services.common.config import GatewayConfig
from services.common.options import ConfigError


class Tls(NamedTuple):
    """Read once at the start; a new certificate takes a restart."""

    cert_file: str
    key_file: str
    grpc: grpc.ServerCredentials


def read_tls(config: GatewayConfig) -> Tls | None:
    """None where the servers speak plain text. Raises ConfigError naming the option whose file is unusable."""
    cert, key, client_ca = config.tls_cert_file, config.tls_key_file, config.grpc_client_ca_file
    if cert is None or key is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--tls-cert-file, --tls-key-file: {error}") from error
    roots = None if client_ca is None else _read(client_ca, "--grpc-client-ca-file")
    pair = (_read(key, "--tls-key-file"), _read(cert, "--tls-cert-file"))
    return Tls(cert, key, grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None))


def _read(path: str, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {error}") from error
