"""Certificates that a process shows, and the authorities it trusts, from files that may be replaced while it runs.

A server asks for them at each handshake, so a renewed certificate is shown without a restart. What cannot be used - a
certificate whose key is still the old one - is logged and changes nothing: the last good set stays.
"""

import logging
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from services.common.options import ConfigError, reason_of

log = logging.getLogger(__name__)


class Files(NamedTuple):
    """Paths of PEM files, with the options that name them."""

    cert: str
    key: str
    ca: str | None
    """Authorities of the other side's certificates; None asks for no certificate."""
    options: tuple[str, str, str]
    """The three options, for messages."""


class Pems(NamedTuple):
    """The files' contents."""

    cert: bytes
    key: bytes
    ca: bytes | None


class Certificates:
    """One set of files. Asked by grpc's handshake threads and by the event loop."""

    def __init__(self, files: Files) -> None:
        """Raises ConfigError when they cannot be used."""
        self.files = files
        self._stamp = self._stamps()
        self._pems = self._read()

    def current(self) -> Pems:
        """The files as they are now, or as they were when they last made sense."""
        try:
            stamp = self._stamps()
            if stamp != self._stamp:
                self._pems, self._stamp = self._read(), stamp
                log.info("certificate renewed: %s", self.files.cert)
        except ConfigError as error:
            log.warning("the renewed certificate is not used: %s", error)
        return self._pems

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that shows them, and with authorities lets in only who has a certificate of theirs."""
        has_clients = self.files.ca is not None
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration, has_clients)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client that shows them and trusts their authorities: as they are now."""
        pems = self.current()
        return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self.current()
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever a file does, also by another file or link in its place."""
        paths = (self.files.cert, self.files.key, self.files.ca)
        return tuple(_stamp(path, option) for path, option in zip(paths, self.files.options, strict=True) if path)

    def _read(self) -> Pems:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.files.cert, self.files.key)
            cert, key = Path(self.files.cert).read_bytes(), Path(self.files.key).read_bytes()
        except (OSError, ssl.SSLError) as error:
            problem = f"{self.files.cert} and {self.files.key} cannot be used: {reason_of(error)}"
            raise ConfigError(f"{', '.join(self.files.options[:2])}: {problem}") from error
        return Pems(cert, key, self._authorities(context))

    def _authorities(self, context: ssl.SSLContext) -> bytes | None:
        if self.files.ca is None:
            return None
        try:
            context.load_verify_locations(self.files.ca)
            return Path(self.files.ca).read_bytes()
        except (OSError, ssl.SSLError) as error:
            problem = f"{self.files.ca} cannot be used: {reason_of(error)}"
            raise ConfigError(f"{self.files.options[2]}: {problem}") from error


def _stamp(path: str, option: str) -> tuple[int, int]:
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {reason_of(error)}") from error
    return stat.st_mtime_ns, stat.st_ino
