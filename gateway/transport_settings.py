"""Settings of the gateway's own doors: TLS for clients, Unix sockets."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Self

import grpc
from annotated_types import Ge, Le
from pydantic import model_validator

from slipstream.rpc.tls import check_files
from slipstream.rpc.unix_socket import UnixSocket
from slipstream.transport_settings import SocketPath, TransportSettings


class GatewayTransportSettings(TransportSettings):
    """What GatewaySettings adds to those of all services."""

    ssl_certfile: Path | None = None
    """Certificate that both APIs show to clients, PEM, followed by intermediate ones if there are any; with it their
    ports speak TLS alone."""

    ssl_keyfile: Path | None = None
    """Private key of --ssl-certfile, PEM, without a password."""

    ssl_ca_certs: Path | None = None
    """Certificates of the authority that those of clients must be signed by, PEM."""

    ssl_cert_reqs: Annotated[int, Ge(0), Le(2)] = 0
    """Whether clients must show a certificate, as Python's ssl module counts: 0: no, 1: one that is shown must be good
    (over gRPC none is asked for), 2: yes."""

    grpc_uds: SocketPath | None = None
    """Unix socket for gRPC in place of --host and --grpc-port; --uds is that for HTTP."""

    health_uds: SocketPath | None = None
    """Unix socket on which the gRPC server answers as well, for whoever watches this process and has no certificate.
    Nobody else's: its permissions are 600."""

    @model_validator(mode="after")
    def _check_ssl(self) -> Self:
        files = (self.ssl_certfile, self.ssl_keyfile, self.ssl_ca_certs)
        check_files(*files, ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs"))
        if any(files) and self.ssl_certfile is None:
            raise ValueError("--ssl-ca-certs needs --ssl-certfile and --ssl-keyfile")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ValueError("--ssl-cert-reqs above 0 needs --ssl-ca-certs")
        return self

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Of the public gRPC port; None: it speaks plain text. OSError if a file cannot be read any more."""
        if self.ssl_certfile is None or self.ssl_keyfile is None:
            return None
        return grpc.ssl_server_credentials(
            [(self.ssl_keyfile.read_bytes(), self.ssl_certfile.read_bytes())],
            self.ssl_ca_certs.read_bytes() if self.ssl_ca_certs else None,
            require_client_auth=self.ssl_cert_reqs == ssl.CERT_REQUIRED,
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """Of the HTTP port; None: it speaks plain text. OSError if a file cannot be read any more."""
        if self.ssl_certfile is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        context.set_alpn_protocols(["http/1.1"])
        if self.ssl_ca_certs is not None:
            context.load_verify_locations(self.ssl_ca_certs)
            context.verify_mode = ssl.VerifyMode(self.ssl_cert_reqs)
        return context

    @property
    def grpc_socket(self) -> UnixSocket | None:
        """Of `grpc_uds`."""
        return self._socket(self.grpc_uds)

    @property
    def health_socket(self) -> UnixSocket | None:
        """Of `health_uds`: nobody else's."""
        return None if self.health_uds is None else UnixSocket(self.health_uds)
