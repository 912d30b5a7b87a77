"""Mutual TLS between pods: what a session's two ends show each other.

Pods come and go under addresses that no certificate names, so all certificates of one installation bear one name; a
client takes only a server with a certificate of the pods' authorities that bears it, a server only a client with one.
"""

import grpc
import grpc.aio

from services.common import rpc
from services.common.certificates import Certificates, Files
from services.common.config import PodTlsOptions

_OPTIONS = ("--pod-tls-cert-file", "--pod-tls-key-file", "--pod-tls-ca-file")


class PodTls:
    """One per process; None where sessions are plain text."""

    def __init__(self, certificates: Certificates, name: str) -> None:
        self._certificates = certificates
        self._name = name

    def server_credentials(self) -> grpc.ServerCredentials:
        """For the port that masters and peers come to."""
        return self._certificates.server_credentials()

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to another pod, with the certificate of this moment; the caller closes it."""
        return rpc.channel(address, self._certificates.channel_credentials(), self._name)


def read_pod_tls(options: PodTlsOptions) -> PodTls | None:
    """Raises ConfigError naming the option whose file is unusable."""
    cert, key, ca = options.pod_tls_cert_file, options.pod_tls_key_file, options.pod_tls_ca_file
    if cert is None or key is None or ca is None:
        return None
    return PodTls(Certificates(Files(cert, key, ca, _OPTIONS)), options.pod_tls_name)


def dial_of(tls: PodTls | None) -> rpc.Dial:
    """How this process opens channels to other pods."""
    return rpc.channel if tls is None else tls.channel
